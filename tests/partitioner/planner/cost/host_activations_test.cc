// What blocks whose activations wait on the host hold on the device, what their copies cost, and where they are chosen.
#include "partitioner/planner/cost/host_activations.h"

#include <gtest/gtest.h>

#include "partitioner/planner/cost/memory/program_memory.h"
#include "partitioner/planner/cost/stage_room.h"
#include "partitioner/planner/report/explain.h"
#include "partitioner/planner/report/make_plan.h"
#include "partitioner/planner/report/plan_file.h"
#include "tests/partitioner/support/search_problems.h"

namespace partita {
namespace {

constexpr double kWidth = 4096, kLength = 4096;

// A transformer as programs of ours hold it, in bf16; its loss works on as many bytes as a block.
struct Model {
  explicit Model(int blocks, const std::string& device = "H100-80GB", int64_t devices = 1)
      : workload(transformer(blocks, kWidth, kLength, 8 * kWidth)), hardware(cluster(1, devices, device)) {
    UnitWork& block = workload.kinds[1];
    block.input_bytes = 2 * block.input;
    block.kept[static_cast<size_t>(RecomputeMode::kNone)] = {2 * block.saved[0], 2 * block.saved[1]};
    own = problem(workload, hardware, 16);
    own.own_programs = true;
  }
  DeviceProfile& device() { return hardware.groups[0].device; }
  double kept() const { return 2 * 26 * kLength * kWidth; }  // of a block and micro-batch of one sample
  double input() const { return 2 * kLength * kWidth; }
  MemoryUse memory(Layout l, RecomputeMode mode, size_t stage = 0) const {
    l.recompute = mode;
    return CostModel(own).predict(l, false).memory[stage];
  }
  // Bytes on the device that a mode takes less than kNone.
  double freed(const Layout& l, RecomputeMode mode) const {
    return memory(l, RecomputeMode::kNone).total() - memory(l, mode).total();
  }
  double step(Layout l, RecomputeMode mode) const {
    l.recompute = mode;
    return CostModel(own).predict(l, false).step_seconds;
  }

  Workload workload;
  Cluster hardware;
  Problem own;
};

// One block that is at work and one on its way are on the device, and as the loss is worked on twice as much: so
// offloading all of a few blocks gains nothing.
TEST(HostActivations_Memory, LeavesFewBlocksOnTheDevice) {
  for (int blocks : {1, 2, 4, 8}) {
    const Model m(blocks);
    const MemoryUse none = m.memory({}, RecomputeMode::kNone), offload = m.memory({}, RecomputeMode::kOffload);
    EXPECT_DOUBLE_EQ(none.activations - offload.activations, blocks * m.kept()) << blocks;
    EXPECT_NEAR(m.freed({}, RecomputeMode::kOffload), std::max(0, blocks - 4) * m.kept(), 1) << blocks;
    EXPECT_NEAR(m.freed({}, RecomputeMode::kFullOffload) - m.freed({}, RecomputeMode::kFull),
                std::max(0, blocks - 2) * m.input(), 1)
        << blocks;
  }
}

// The last blocks are on their way while the loss, with what it keeps, is worked on.
TEST(HostActivations_Memory, LiesBesideTheLoss) {
  Model m(8);
  UnitWork& last = m.workload.kinds[2];
  last.kept[static_cast<size_t>(RecomputeMode::kNone)] = {2 * kLength * 8000, 0};
  last.largest = 100 * kLength * 8000;
  EXPECT_NEAR(m.freed({}, RecomputeMode::kOffload), (8 - 4) * m.kept(), 1);
}

// However many micro-batches are in flight, or two for each of those that take turns.
TEST(HostActivations_Memory, IsOfAStageAndNotOfAMicroBatch) {
  const Model m(8, "H100-80GB", 4);
  Layout l;
  l.pipeline = 4;
  const double in_flight = 4, blocks = 2;  // of the first stage
  EXPECT_NEAR(m.freed(l, RecomputeMode::kOffload), (in_flight * blocks - 2) * m.kept(), 1);
  EXPECT_NEAR(m.freed(l, RecomputeMode::kFullOffload) - m.freed(l, RecomputeMode::kFull),
              (in_flight * blocks - 2) * m.input(), 1);
  l.pipeline = 1, l.data = 4, l.overlap_micro_batches = 2;
  EXPECT_NEAR(m.freed(l, RecomputeMode::kOffload), (2 * 8 - 8) * m.kept(), 1);
}

// Of one micro-batch in flight, what blocks behind them kept is free by then; but one of those is in use as they come.
TEST(HostActivations_Memory, SharesRoomWithBlocksThatAreKept) {
  for (auto [all, offloaded, freed] : {std::tuple{8, 3, 3}, {8, 6, 6}, {8, 7, 5}, {3, 1, 1}, {2, 1, 0}}) {
    const Model m(all);
    CostModel model(m.own);
    Layout l;
    const double before = model.predict(l, false).memory[0].total();
    l.recompute_blocks.assign(static_cast<size_t>(offloaded), RecomputeMode::kOffload);
    EXPECT_NEAR(before - model.predict(l, false).memory[0].total(), freed * m.kept(), 1) << all << " " << offloaded;
  }
}

TEST(HostActivations_Memory, IsCountedForOtherSoftwareToo) {
  Model m(8);
  m.own.own_programs = false, m.device().software.fragmentation = 0;
  EXPECT_NEAR(m.freed({}, RecomputeMode::kOffload), (8 - 2) * m.kept(), 1);
  EXPECT_GT(m.freed({}, RecomputeMode::kFullOffload), m.freed({}, RecomputeMode::kFull) + 5 * m.input());
}

// There is no other memory: as without.
TEST(HostActivations, AreOnTheDeviceWhereItIsTheHost) {
  const Model cpu(8, "cpu");
  const Layout one;
  EXPECT_EQ(cpu.freed(one, RecomputeMode::kOffload), 0);
  EXPECT_EQ(cpu.freed(one, RecomputeMode::kFullOffload), cpu.freed(one, RecomputeMode::kFull));
  EXPECT_GT(cpu.freed(one, RecomputeMode::kFull), 0);
  EXPECT_EQ(cpu.step(one, RecomputeMode::kOffload), cpu.step(one, RecomputeMode::kNone));
  EXPECT_EQ(cpu.step(one, RecomputeMode::kFullOffload), cpu.step(one, RecomputeMode::kFull));
}

// What gradients of weights that are put off read comes up once more for them; the gradients of results, and what was
// computed again, wait on the device. The first stage puts nothing off.
TEST(HostActivations, ComeUpOnceMoreForGradientsThatArePutOff) {
  const Model m(8, "H100-80GB", 2);
  Layout l;
  l.pipeline = 2, l.schedule = PipelineSchedule::kZeroBubble;
  const UnitWork& block = m.workload.kinds[1];
  const double operands = operand_bytes(block, m.own, l), put_off = put_off_bytes(block, m.own, l);
  auto activations = [&](RecomputeMode mode, size_t stage) { return m.memory(l, mode, stage).activations; };
  auto least = [&](size_t stage) { return activations(RecomputeMode::kOffload, stage); };
  EXPECT_DOUBLE_EQ(activations(RecomputeMode::kNone, 0) - least(0), 4 * 2 * m.kept());
  EXPECT_DOUBLE_EQ(activations(RecomputeMode::kNone, 1) - least(1), 4 * 2 * (m.kept() - put_off));
  EXPECT_DOUBLE_EQ(activations(RecomputeMode::kFullOffload, 1) - least(1), 4 * 2 * operands);
  l.recompute = RecomputeMode::kOffload;
  CostModel model(m.own);
  const auto passes = model.step_times(l, model.predict(l, false)).chunks;
  auto copied = [&](const PassTimes& pass, TimeKind kind) {
    const double hidden = kind == TimeKind::kToHost ? pass.hidden_to_host : pass.hidden_from_host;
    return (pass[kind] + hidden) * m.hardware.groups[0].device.host_bandwidth;
  };
  using enum TimeKind;
  EXPECT_NEAR(copied(passes[0][0].forward, kToHost), 4 * m.kept(), 1);
  EXPECT_NEAR(copied(passes[0][0].backward, kFromHost), 4 * m.kept(), 1);
  EXPECT_EQ(copied(passes[0][0].weight, kFromHost), 0);
  EXPECT_NEAR(copied(passes[1][0].forward, kToHost), 4 * (m.kept() + operands), 1);
  EXPECT_NEAR(copied(passes[1][0].backward, kFromHost), 4 * m.kept(), 1);
  EXPECT_NEAR(copied(passes[1][0].weight, kFromHost), 4 * operands, 1);
}

// What gradients of weights read waits for them on all stages but the first, computed again or not, in the places of
// what backward has read: computing a block again frees what those are more than that.
TEST(PutOffGradients, KeepWhatTheyRead) {
  const Model m(8, "H100-80GB", 2);
  Layout l;
  l.pipeline = 2;
  auto freed = [&](PipelineSchedule schedule, size_t stage) {
    l.schedule = schedule;
    return m.memory(l, RecomputeMode::kNone, stage).activations - m.memory(l, RecomputeMode::kFull, stage).activations;
  };
  l.recompute = RecomputeMode::kNone;
  const double waits = operand_bytes(m.workload.kinds[1], m.own, l) + put_off_bytes(m.workload.kinds[1], m.own, l);
  EXPECT_GT(waits, 10 * m.input());
  EXPECT_LT(waits, m.kept());
  using enum PipelineSchedule;
  EXPECT_DOUBLE_EQ(freed(kZeroBubble, 0), freed(k1f1b, 0));
  EXPECT_DOUBLE_EQ(freed(kZeroBubble, 1), 4 * 2 * (m.kept() - waits));  // of two that are in flight there
}

// A block's copies that its own forward and backward part do not hide are waited for, of each micro-batch.
TEST(HostActivations_Seconds, AreWhatComputeDoesNotHide) {
  Model m(8);
  const double bytes = 16 * 8 * m.kept(), slowed = 2 * bytes / m.device().bandwidth;
  auto added = [&](RecomputeMode mode, RecomputeMode than) { return m.step({}, mode) - m.step({}, than); };
  m.device().host_bandwidth = 1e15;
  EXPECT_NEAR(added(RecomputeMode::kOffload, RecomputeMode::kNone), slowed, 1e-6 * slowed);
  EXPECT_NEAR(added(RecomputeMode::kFullOffload, RecomputeMode::kFull), slowed / 26, 1e-6 * slowed);
  // Hardly anything is hidden: both ways, but for the blocks' compute.
  m.device().host_bandwidth = 1e9;
  Layout l;
  l.recompute = RecomputeMode::kOffload;
  CostModel model(m.own);
  const Prediction p = model.predict(l, false);
  const ChunkTimes passes = model.step_times(l, p).chunks[0][0];
  for (auto [pass, kind] : {std::pair{&passes.forward, TimeKind::kToHost}, {&passes.backward, TimeKind::kFromHost}}) {
    const double hidden = kind == TimeKind::kToHost ? pass->hidden_to_host : pass->hidden_from_host;
    EXPECT_NEAR((*pass)[kind] + hidden, 8 * m.kept() / 1e9, 1e-6);
    EXPECT_GT(hidden, 0);
    EXPECT_LE(hidden, pass->total());
  }
  EXPECT_NEAR(p.breakdown.offload, 16 * (passes.forward[TimeKind::kToHost] + passes.backward[TimeKind::kFromHost]),
              1e-9 * p.breakdown.offload);
  EXPECT_NEAR(added(RecomputeMode::kOffload, RecomputeMode::kNone), p.breakdown.offload + slowed, 1e-6);
  EXPECT_EQ(p.breakdown.recompute, 0);
}

// Devices that hold `share` of what is kept.
void hold(Model& m, const Layout& l, double share) {
  m.device().memory_bytes = 1e15;
  const MemoryUse all = m.memory(l, RecomputeMode::kNone);
  m.device().memory_bytes = all.total() - (1 - share) * all.activations;
}

bool on_host(const Layout& l) {
  return waits_on_host(l.recompute) || std::any_of(l.recompute_blocks.begin(), l.recompute_blocks.end(), waits_on_host);
}

// Over a link that hides all copies nothing is computed again, over a slow one nothing waits on the host.
TEST(HostActivations_Chosen, WhereCopiesCostLessThanCompute) {
  Model m(12);
  hold(m, {}, 0.5);
  auto chosen = [&](double bandwidth) {
    m.device().host_bandwidth = bandwidth;
    CostModel model(m.own);
    auto l = model.with_recompute({}, 0);
    EXPECT_TRUE(l && model.predict(*l, false).fits) << bandwidth;
    return l.value_or(Layout{});
  };
  const Layout fast = chosen(1e12), slow = chosen(1e8), none = chosen(0);
  EXPECT_EQ(std::count(fast.recompute_blocks.begin(), fast.recompute_blocks.end(), RecomputeMode::kOffload),
            std::ssize(fast.recompute_blocks));
  EXPECT_TRUE(on_host(fast));
  EXPECT_EQ(slow, none);
  EXPECT_FALSE(on_host(none));
  m.device().host_bandwidth = 1e12;
  CostModel model(m.own);
  EXPECT_LT(model.predict(fast, false).step_seconds, 0.95 * model.predict(none, false).step_seconds);
  const std::vector<RecomputedBlocks> told = model.recomputed(fast, 0);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_DOUBLE_EQ(told[0].host_bytes, std::ssize(told[0].blocks) * m.kept());
  EXPECT_DOUBLE_EQ(told[0].bytes, told[0].host_bytes);
}

// Whatever is missing, on stages of any number of blocks: what is chosen fits, and where nothing is, no mode of all
// blocks does.
TEST(HostActivations_Chosen, FitsOnStagesOfFewBlocks) {
  int hosted = 0, deeper = 0;
  for (int blocks : {1, 2, 3, 4, 6}) {
    for (double share : {0.9, 0.7, 0.5, 0.35, 0.2, 0.1}) {
      Model m(blocks);
      hold(m, {}, share);
      CostModel model(m.own);
      const auto chosen = model.with_recompute({}, 0);
      bool any = false, full = false;
      for (RecomputeMode mode : {RecomputeMode::kFull, RecomputeMode::kOffload, RecomputeMode::kFullOffload}) {
        Layout l;
        l.recompute = mode;
        any = any || model.predict(l, false).fits, full = full || (mode == RecomputeMode::kFull && any);
      }
      EXPECT_EQ(chosen.has_value(), any) << blocks << " " << share;
      if (!chosen) continue;
      EXPECT_TRUE(model.predict(*chosen, false).fits) << blocks << " " << share;
      EXPECT_FALSE(blocks <= 2 && on_host(*chosen)) << blocks << " " << share;
      hosted += on_host(*chosen), deeper += !full;
    }
  }
  EXPECT_GT(hosted, 0);
  EXPECT_GT(deeper, 0);
}

// Wide layers compute long for what they keep: on H100s that share nothing but samples the search lets them wait on the
// host, which is faster than all that fits without. On hosts there is nothing to gain.
TEST(HostActivations_Search, IsFasterOnGpusAndLeftOutOnHosts) {
  Workload w = transformer(8, 16384, 8192, 32000);
  UnitWork& block = w.kinds[1];
  block.input_bytes = 2 * block.input;
  block.kept[static_cast<size_t>(RecomputeMode::kNone)] = {2 * block.saved[0], 2 * block.saved[1]};
  auto best = [&](Cluster c) {
    Problem p = problem(w, c, 64);
    p.own_programs = true;
    CostModel model(p);
    SearchOptions options;
    options.pin.axes = {{"tensor", 1}, {"context", 1}, {"pipeline", 1}};
    const auto found = search(model, options);
    EXPECT_TRUE(found.ok() && found->best) << found.status();
    const Candidate& best = *found->best;
    EXPECT_TRUE(best.prediction.fits);
    const Plan plan = make_plan(p, model, *found, best, {});
    EXPECT_EQ(plan_text(*parse_plan(plan_text(plan))), plan_text(plan));
    EXPECT_EQ(explanation(plan).find(" GB on the host, ") != std::string::npos, on_host(best.layout))
        << explanation(plan);
    return best;
  };
  const auto nodes = parse_cluster("preset: azure-nd96isr-h100-v5\nnodes: 2\n", "c", library());
  ASSERT_TRUE(nodes.ok()) << nodes.status();
  Cluster gpus = *nodes, alone = gpus, hosts = gpus, full = gpus;
  alone.groups[0].device.host_bandwidth = 1e6;
  hosts.groups[0].device.host_update_rate = 0;
  full.groups[0].device.host_memory_bytes = 1e6;
  const Candidate with = best(gpus), without = best(alone), there = best(hosts);
  EXPECT_TRUE(on_host(with.layout)) << describe(with.layout);
  EXPECT_FALSE(on_host(without.layout));
  EXPECT_FALSE(on_host(there.layout));
  EXPECT_FALSE(on_host(best(full).layout));
  EXPECT_LT(with.prediction.step_seconds, 0.99 * without.prediction.step_seconds)
      << describe(with.layout) << " | " << describe(without.layout);
}

}  // namespace
}  // namespace partita
