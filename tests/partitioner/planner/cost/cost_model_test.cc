// What must hold of every prediction.
#include "partitioner/planner/cost/cost_model.h"

#include <gtest/gtest.h>

#include "base/cat.h"
#include "tests/partitioner/support/search_problems.h"

namespace partita {
namespace {

// Causal attention over a context axis is exchanged from positions to heads and back: queries, keys, values and the
// result, and their gradients. Keys and values have the heads that they have. Where every query reads all keys, these
// are gathered, and gradients scattered.
TEST(Predict, ContextAxisExchangesAttention) {
  const double d = 1024, s = 4096;
  Workload w = transformer(4, d, s, 8192);
  for (UnitWork& u : w.kinds) {
    for (AttentionWork& a : u.attention) a.full_share = 0.5;
  }
  Cluster c = cluster(1, 8, "A100-80GB");
  Problem p = problem(w, c, 8);
  Layout l;
  l.context = 4, l.data = 2, l.micro_batch = 2;
  double micro = 2, blocks = 4;
  auto exchange = [&](double width) {
    return collective_time(c.groups[0], CollectiveKind::kAllToAll, {4, 1}, width * s / 4 * 2 * 2).seconds;
  };
  EXPECT_NEAR(CostModel(p).predict(l, false).breakdown.context, micro * blocks * 8 * exchange(d), 1e-9);
  for (UnitWork& u : w.kinds) {
    for (AttentionWork& a : u.attention) a.key_heads = a.heads / 4;
  }
  EXPECT_NEAR(CostModel(p).predict(l, false).breakdown.context, micro * blocks * 4 * (exchange(d) + exchange(d / 4)),
              1e-9);
  for (UnitWork& u : w.kinds) {
    for (AttentionWork& a : u.attention) a.full_share = 1, a.key_heads = a.heads;
  }
  EXPECT_NEAR(CostModel(p).predict(l, false).breakdown.context, micro * blocks * 8 * exchange(d), 1e-9);
  l.context = 2, l.data = 4, micro = 1;  // gathering keys sends as much
  p.own_programs = true;
  double moved = 0;
  for (CollectiveKind kind : {CollectiveKind::kAllGather, CollectiveKind::kReduceScatter})
    moved += collective_time(c.groups[0], kind, {2, 1}, 2 * d * s * 2 * 2).seconds;
  EXPECT_NEAR(CostModel(p).predict(l, false).breakdown.context, micro * blocks * moved, 1e-9);
}

// A stage sends what later stages read of it: what all stages read, to each of them, what it reads itself, to none; of
// widths that differ, its own.
TEST(Predict, StagesSendWhatOthersRead) {
  const double d = 1024, s = 2048;
  Workload w = transformer(8, d, s, 8192);
  Cluster c = cluster(1, 4, "A100-80GB");
  const Problem p = problem(w, c, 16);
  Layout l;
  l.pipeline = 4, l.schedule = PipelineSchedule::kGpipe;
  auto sent = [&] { return CostModel(p).traffic(l).boundary_bytes / (2 * s * d); };  // of the stage that sends most
  auto step = [&] { return CostModel(p).predict(l, false).step_seconds; };
  const double alone = step();
  EXPECT_DOUBLE_EQ(sent(), 1);
  w.crossing.push_back({.maker = 1, .readers = {2}, .elements = 5 * s * d});  // the first stage has both
  EXPECT_DOUBLE_EQ(sent(), 1);
  EXPECT_DOUBLE_EQ(step(), alone);
  w.crossing.push_back({.maker = 1, .readers = {3, 4, 5, 8}, .elements = 2 * s * d});  // all others do
  EXPECT_DOUBLE_EQ(sent(), 7);
  EXPECT_GT(step(), alone);
  l.pipeline = 1;
  EXPECT_DOUBLE_EQ(sent(), 0);
}

// A micro-batch's gradients are added where they are stored: with ZeRO-2 and 3, to a rank's own part.
TEST(Predict, ShardedGradientsAreAddedInParts) {
  Workload w = transformer(4, 1024, 512, 8192);
  Cluster c = cluster(4, 8, "A100-80GB");
  double& bytes = c.groups[0].device.software.accumulate_bytes;
  Problem p = problem(w, c, 64);
  Layout l;
  l.data = 32;
  auto cost = [&](int zero) {
    l.zero = zero;
    auto step = [&](double b) { return bytes = b, CostModel(p).predict(l, false).step_seconds; };
    return step(8) - step(0);
  };
  EXPECT_NEAR(cost(1), cost(0), 1e-3 * cost(0));
  EXPECT_LT(cost(2), 0.25 * cost(1));
  EXPECT_GT(cost(3), 0);
}

// What layout changes make is written and read where software copies it, divided as the values are.
TEST(Predict, CopiedLayoutsMoveTheirBytes) {
  const double d = 1024, s = 2048, many = 1e4;
  Workload w = transformer(1, d, s, 8192);
  UnitWork& block = w.kinds[1];
  block.copied = {many * s * d, 0};
  Cluster c = cluster(1, 2, "A100-80GB");
  DeviceProfile& device = c.groups[0].device;
  ComputeOptions options{.precision = Precision::kBf16};
  auto added = [&](double tensor) {
    Share share;
    share.tensor = tensor;
    device.software.copies = 0;
    double before = unit_time(block, w, device, options, share).forward;
    device.software.copies = 1;
    return unit_time(block, w, device, options, share).forward - before;
  };
  double seconds = 2 * 2 * many * s * d * device.software.memory_traffic / (device.bandwidth * device.memory.at(1e12));
  EXPECT_NEAR(added(1), seconds, 0.01 * seconds);
  EXPECT_NEAR(added(2), seconds / 2, 0.01 * seconds);
}

// What a framework does on the host for each block that it recomputes, it does for every micro-batch.
TEST(Predict, RecomputedBlocksCostTheHost) {
  Workload w = transformer(4, 1024, 512, 8192);
  Cluster c = cluster(1, 1, "A100-80GB");
  double& host = c.groups[0].device.software.recompute_seconds;
  Problem p = problem(w, c, 8);
  Layout l;
  auto step = [&](RecomputeMode mode, double seconds) {
    host = seconds, l.recompute = mode;
    return CostModel(p).predict(l, false).step_seconds;
  };
  EXPECT_EQ(step(RecomputeMode::kNone, 1e-3), step(RecomputeMode::kNone, 0));
  EXPECT_NEAR(step(RecomputeMode::kFull, 1e-3) - step(RecomputeMode::kFull, 0), 8 * 4 * 1e-3, 1e-9);
}

// Software that exchanges gradients and states in pieces pays the ring's latency for each of them: in buckets, beside
// stages in what its shards are cut into, and under ZeRO-2 and 3 in those of a unit.
TEST(Predict, ExchangesInMessages) {
  Workload w = transformer(4, 1024, 512, 8192);
  Cluster c = cluster(4, 8, "A100-80GB");
  SoftwareProfile& software = c.groups[0].device.software;
  software.overlap_data = software.overlap_gather = software.overlap_slowdown = software.straggler_per_doubling = 0;
  Problem p = problem(w, c, 32);
  Layout l;
  auto step = [&](int64_t pipeline, int zero, double bucket, double shard, double gather) {
    software.bucket_bytes = bucket, software.shard_message_bytes = shard, software.gather_message_bytes = gather;
    l.pipeline = pipeline, l.data = 32 / pipeline, l.zero = zero;
    return CostModel(p).predict(l, false).step_seconds;
  };
  for (int zero : {0, 1, 2, 3}) {
    for (int64_t pipeline : {1, 2}) {
      const double whole = step(pipeline, zero, 0, 0, 0);
      EXPECT_EQ(step(pipeline, zero, 1e4, 0, 0) > whole, zero <= 1 && pipeline == 1) << zero;
      EXPECT_EQ(step(pipeline, zero, 0, 1e4, 0) > whole, zero == 1 && pipeline == 2) << zero;
      EXPECT_EQ(step(pipeline, zero, 0, 0, 1e4) > whole, zero >= 2) << zero;
    }
  }
  // Gradients are scattered and parameters gathered, 16 bits each, in pieces of 10 kB.
  const double bytes = 2 * w.parameters;
  auto pass = [&](double b) { return collective_time(c.groups[0], CollectiveKind::kAllGather, {32, 1}, b).seconds; };
  const double more = 2 * (bytes / 1e4 * pass(1e4) - pass(bytes));
  EXPECT_NEAR(step(1, 1, 1e4, 0, 0) - step(1, 1, 0, 0, 0), more, 0.01 * more);
}

// Sums of gradients run beside the backward part, but for those of a pipeline, which wait for its last one.
TEST(Predict, PublishedSumsHideBesideBackward) {
  Workload w = transformer(4, 1024, 512, 8192);
  Cluster c = cluster(1, 8, "A100-80GB");
  SoftwareProfile& software = c.groups[0].device.software;
  Problem p = problem(w, c, 256);
  Layout l;
  l.data = 8, l.micro_batch = 32;
  auto waits = [&](double share) {
    software.overlap_data = share;
    return CostModel(p).predict(l, false).breakdown.gradients;
  };
  EXPECT_GT(waits(0), 0);
  EXPECT_EQ(waits(1), 0);
  l.data = 4, l.pipeline = 2;
  EXPECT_GT(waits(0), 0);
  EXPECT_EQ(waits(1), waits(0));
}

// A head that is tied to the embedding: the last stage of published software has a copy, and the ends sum its
// gradients.
TEST(Predict, TiedWeightsOfTwoStages) {
  Workload w = transformer(4, 1024, 512, 8192);
  Cluster c = cluster(1, 2, "A100-80GB");
  Problem p = problem(w, c, 8);
  Layout l;
  l.pipeline = 2;
  const Prediction apart = CostModel(p).predict(l, false);
  const double tied = 1e7, sum = collective_time(c.groups[0], CollectiveKind::kAllReduce, {2, 1}, 2 * tied).seconds;
  w.kinds[static_cast<size_t>(w.units.back())].tied = {tied, 0};
  const Prediction both = CostModel(p).predict(l, false);
  EXPECT_NEAR(both.breakdown.gradients - apart.breakdown.gradients, sum, 1e-9);
  EXPECT_EQ(both.memory[0].total(), apart.memory[0].total());
  EXPECT_NEAR(both.memory[1].parameters - apart.memory[1].parameters, 2 * tied, 1);
  EXPECT_NEAR(both.memory[1].optimizer - apart.memory[1].optimizer, 12 * tied, 1);
  l.pipeline = 1, l.data = 2;
  const double shared = CostModel(p).predict(l, false).memory[0].parameters;
  w.kinds[static_cast<size_t>(w.units.back())].tied = {};
  EXPECT_EQ(CostModel(p).predict(l, false).memory[0].parameters, shared);
}

TEST(Predict, SeveralMicroBatchesAddTheirGradients) {
  Workload w = transformer(4, 1024, 512, 8192);
  Cluster c = cluster(1, 1, "A100-80GB");
  SoftwareProfile& software = c.groups[0].device.software;
  auto step = [&](int64_t batch, double bytes) {
    software.accumulate_bytes = bytes;
    return CostModel(problem(w, c, batch)).predict({}, false).step_seconds;
  };
  EXPECT_DOUBLE_EQ(step(1, 8), step(1, 0));
  double each = memory_time(c.groups[0].device, 8 * w.parameters, 0);
  EXPECT_NEAR(step(4, 8) - step(4, 0), 4 * each, 0.02 * each);
}

// Attention that keeps its scores: heads whose rows are no whole 16 bytes, and more keys than a fused softmax takes.
TEST(Predict, AttentionThatKernelsDoNotFit) {
  Workload w = transformer(2, 1024, 2048, 8192);
  DeviceProfile d = cluster(1, 1, "A100-80GB").groups[0].device;
  ComputeOptions options{Precision::kBf16, false};
  auto forward = [&] { return unit_time(w.kinds[1], w, d, options, {}).forward; };
  d.misaligned = 0.1;
  double aligned = forward();
  w.kinds[1].attention[0].head_size = 68;
  EXPECT_GT(forward(), aligned);
  w.kinds[1].attention[0].head_size = 64;
  d.software.unfused_score_traffic = 2 * d.software.math_score_traffic;
  d.software.fused_softmax_keys = 2048;
  EXPECT_DOUBLE_EQ(forward(), aligned);
  d.software.fused_softmax_keys = 2047;
  EXPECT_GT(forward(), aligned);
  options.flash = true;
  double flash = forward();
  d.software.fused_softmax_keys = 0;
  EXPECT_DOUBLE_EQ(forward(), flash);
}

}  // namespace
}  // namespace partita
