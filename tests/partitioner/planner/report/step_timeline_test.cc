// What simulate and report read of a plan: every part of the step once, streams that do not overlap, sends that arrive,
// and bytes between ranks against counts by hand.
#include "partitioner/planner/report/step_timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/cat.h"
#include "nlohmann/json.hpp"
#include "partitioner/planner/report/make_plan.h"
#include "partitioner/planner/report/plan_file.h"

namespace partita {
namespace {

const ProfileLibrary& library() {
  static const ProfileLibrary l = *ProfileLibrary::load();
  return l;
}

Cluster cluster(const std::string& text) {
  auto c = parse_cluster(text, "c", library());
  EXPECT_TRUE(c.ok()) << c.status();
  return *c;
}

constexpr double kWidth = 512, kPositions = 256, kVocabulary = 4096;

// Blocks of a matrix product each, whose sums along the tensor axis are one value forward and one backward.
Workload blocks(int count) {
  Workload w;
  UnitWork first, block, last;
  const double s = kPositions, d = kWidth;
  first.name = "before the blocks", first.parameters = {kVocabulary * d, 0};
  block.name = "block 0", block.parameters = {8 * d * d, 0}, block.saved = {4 * s * d, 2 * s * d}, block.input = s * d;
  block.sequence = true;
  block.matrices.push_back({1, s, 8 * d, d}), block.input_gradients.push_back({1, s, d, 8 * d});
  block.weight_gradients.push_back({1, d, 8 * d, s});
  block.forward_reduces = {s * d}, block.backward_reduces = {s * d};
  last.name = "after the blocks", last.parameters = {kVocabulary * d, 0}, last.input = s * d;
  w.kinds = {first, block, last};
  w.units.assign(static_cast<size_t>(count) + 2, 1);
  w.units.front() = 0, w.units.back() = 2;
  for (int u = 1; u <= count + 1; ++u) w.crossing.push_back({u - 1, {u}, s * d, 0});
  w.sequence = w.tokens = s;
  w.parameters = 2 * kVocabulary * d + count * 8 * d * d;
  return w;
}

struct Planned {
  Workload workload = blocks(8);
  Cluster machines;
  Problem problem;
  Layout layout;
  Prediction prediction;
  Plan plan;

  explicit Planned(const std::string& text, const PinRecipe& pin, int64_t batch = 32) : machines(cluster(text)) {
    problem.workload = &workload, problem.cluster = &machines, problem.global_batch = batch;
    problem.options.precision = Precision::kBf16;
    CostModel model(problem);
    SearchOptions options;
    options.pin = pin;
    auto found = search(model, options);
    EXPECT_TRUE(found.ok()) << found.status();
    if (!found.ok()) return;
    const Candidate& c = found->best ? *found->best : *found->nearest;
    layout = c.layout, prediction = c.prediction;
    plan = make_plan(problem, model, *found, c, {});
  }
};

PinRecipe pins(std::map<std::string, int64_t> axes) {
  PinRecipe p;
  p.axes = std::move(axes);
  p.recompute = RecomputeMode::kNone, p.sequence_parallel = false, p.micro_batch = 1;
  return p;
}

constexpr const char* kNode = "nodes: 2\ndevices_per_node: 4\ndevice: A100-80GB\n";

// Layouts that between them have all streams.
std::vector<std::pair<std::string, PinRecipe>> cases() {
  std::vector<std::pair<std::string, PinRecipe>> out;
  auto add = [&](const char* text, PinRecipe p) { out.emplace_back(text, std::move(p)); };
  for (PipelineSchedule schedule : {PipelineSchedule::kGpipe, PipelineSchedule::k1f1b, PipelineSchedule::kInterleaved,
                                    PipelineSchedule::kZeroBubble, PipelineSchedule::kPipedream}) {
    PinRecipe p = pins({{"data", 2}, {"tensor", 2}, {"pipeline", 2}});
    p.schedule = schedule;
    if (schedule == PipelineSchedule::kInterleaved) p.interleave = 2;
    add(kNode, p);
  }
  for (int zero : {0, 1, 2, 3}) {
    PinRecipe p = pins({{"data", 8}, {"tensor", 1}, {"pipeline", 1}});
    p.zero = zero;
    add(kNode, p);
    p.zero_group = 4;
    add(kNode, p);
  }
  PinRecipe offload = pins({{"data", 4}, {"tensor", 2}, {"pipeline", 1}});
  offload.offload = OffloadMode::kOptimizer, offload.zero = 1, offload.recompute = RecomputeMode::kFull;
  add(kNode, offload);
  PinRecipe waiting = pins({{"data", 2}, {"tensor", 2}, {"pipeline", 2}});
  waiting.recompute = RecomputeMode::kFullOffload;
  add(kNode, waiting);
  waiting.recompute = RecomputeMode::kOffload;
  add(kNode, waiting);
  PinRecipe differ = pins({});
  differ.stages = {{{"data", 4}}, {{"data", 1}, {"tensor", 2}}}, differ.zero = 1;  // the longest computes most
  add("nodes: 1\ndevices_per_node: 6\ndevice: A100-80GB\n", differ);
  // A slow network: the next message is made before the last one has arrived.
  PinRecipe chain = pins({{"data", 1}, {"tensor", 1}, {"pipeline", 4}});
  add("nodes: 4\ndevices_per_node: 1\ndevice: A100-80GB\nlinks:\n  - {kind: ethernet, bandwidth: 1e8}\n", chain);
  return out;
}

template <typename Check>
void for_each_case(const Check& check) {
  for (const auto& [text, pin] : cases()) {
    Planned p(text, pin);
    SCOPED_TRACE(describe(p.layout));
    auto step = planned_step(p.plan);
    ASSERT_TRUE(step.ok()) << step.status();
    check(p, *step, step_timeline(*step));
  }
}

TEST(StepTimeline, EndsWhenThePlanSays) {
  for_each_case([](const Planned& p, const PlannedStep& step, const StepTimeline& t) {
    EXPECT_NEAR(t.seconds / p.prediction.step_seconds, 1, 1e-9);
    EXPECT_EQ(step.ranks(), p.machines.devices());
  });
}

// What a stage's ranks compute and wait for adds up to the step.
TEST(StepTimeline, EverySecondOfAStageHasACause) {
  for_each_case([](const Planned& p, const PlannedStep& step, const StepTimeline& t) {
    for (size_t s = 0; s < step.stages.size(); ++s) {
      const StageSeconds seconds = stage_seconds(step, t, s);
      double all = 0;
      for (const auto& [name, cause] : kBreakdownNames) {
        EXPECT_GE(seconds.spent.*cause, -1e-12) << name;
        all += seconds.spent.*cause;
      }
      EXPECT_NEAR(all / p.prediction.step_seconds, 1, 1e-9) << s;
    }
  });
}

TEST(StepTimeline, StreamsAreBusyWithOneThingAtATime) {
  for_each_case([](const Planned&, const PlannedStep&, const StepTimeline& t) {
    for (const std::vector<Slice>& slices : t.slices) {
      std::map<Stream, double> end;
      for (const Slice& s : slices) {
        double& last = end[stream_of(s.part)];
        EXPECT_GE(s.start, last - 1e-9) << stream_name(stream_of(s.part));
        EXPECT_GT(s.end, s.start);
        EXPECT_LE(s.end, t.seconds * (1 + 1e-12));
        last = s.end;
      }
    }
    std::map<std::pair<int, int>, double> link;
    for (const SendEvent& s : t.passes.sends) {
      double& last = link[{s.from, s.to}];
      EXPECT_GE(s.start, last - 1e-9);
      last = s.end;
    }
  });
}

// What the parts of the longest stage add up to is what the plan's breakdown says.
TEST(StepTimeline, PartsAddUpToTheBreakdown) {
  for_each_case([](const Planned& p, const PlannedStep& step, const StepTimeline& t) {
    std::map<TimeKind, double> most;
    for (const std::vector<Slice>& slices : t.slices) {
      std::map<TimeKind, double> sum;
      for (const Slice& s : slices) sum[s.part] += s.end - s.start;
      for (auto [part, seconds] : sum) most[part] = std::max(most[part], seconds);
    }
    const Breakdown& b = p.prediction.breakdown;
    EXPECT_NEAR(most[TimeKind::kCompute], b.compute, 1e-6 * b.compute);
    EXPECT_NEAR(most[TimeKind::kTensor], b.tensor, 1e-6 * b.compute);
    EXPECT_NEAR(most[TimeKind::kRecompute], b.recompute, 1e-6 * b.compute);
    EXPECT_NEAR(most[TimeKind::kStragglers], b.stragglers, 1e-6 * b.compute);
    // The streams of copies, gathers and sums also have what compute hides.
    double hidden = 0;
    for (size_t s = 0; s < step.stages.size(); ++s) hidden = std::max(hidden, stage_seconds(step, t, s).hidden_copies);
    EXPECT_NEAR(most[TimeKind::kToHost] + most[TimeKind::kFromHost], b.offload + hidden, 1e-6 * b.compute);
    EXPECT_GE(most[TimeKind::kGathers] * (1 + 1e-9), b.gathers);
    EXPECT_GE((most[TimeKind::kReduce] + most[TimeKind::kUpdated]) * (1 + 1e-9), b.gradients);
  });
}

// A result is used only after it has come: each pass but the first stage's begins after a message's end.
TEST(StepTimeline, EveryMessageArrivesBeforeItsPass) {
  for_each_case([](const Planned&, const PlannedStep& step, const StepTimeline& t) {
    const int stages = static_cast<int>(step.stages.size()), chunks = static_cast<int>(step.traffic.chunks);
    EXPECT_EQ(static_cast<int64_t>(t.passes.sends.size()),
              2 * step.traffic.micro_batches * (static_cast<int64_t>(stages) * chunks - 1) * (stages > 1));
    for (const SendEvent& s : t.passes.sends) {
      const bool forward = s.kind == StageWork::kForward;
      const int chunk = s.chunk + (forward ? s.to < s.from : -(s.to > s.from));
      const auto pass = std::find_if(t.passes.events.begin(), t.passes.events.end(), [&](const Event& e) {
        return e.kind == s.kind && e.stage == s.to && e.chunk == chunk && e.micro_batch == s.micro_batch;
      });
      ASSERT_NE(pass, t.passes.events.end());
      EXPECT_GE(pass->start, s.end - 1e-12);
    }
  });
}

std::array<double, kTrafficKinds> sent_by(const TrafficMatrix& m, int64_t from) {
  std::array<double, kTrafficKinds> sum{};
  for (int64_t to = 0; to < m.blocks; ++to) {
    for (size_t k = 0; k < kTrafficKinds; ++k) sum[k] += m.at(from, to)[k];
  }
  return sum;
}

double of(const std::array<double, kTrafficKinds>& cell, TrafficKind kind) { return cell[static_cast<size_t>(kind)]; }

// Counted by hand: data 2 x tensor 2 x pipeline 2, 16-bit values, 16 micro-batches of one sample.
TEST(Traffic, BytesOfDataTensorAndPipelineByHand) {
  PinRecipe pin = pins({{"data", 2}, {"tensor", 2}, {"pipeline", 2}});
  pin.zero = 0, pin.schedule = PipelineSchedule::k1f1b;
  Planned p(kNode, pin);
  auto step = planned_step(p.plan);
  ASSERT_TRUE(step.ok()) << step.status();
  const TrafficMatrix m = traffic_matrix(step->traffic, 1, step->ranks());
  ASSERT_EQ(m.blocks, 8);
  const double micro = 16, value = kPositions * kWidth * 2;
  for (int64_t rank = 0; rank < 8; ++rank) {
    SCOPED_TRACE(rank);
    const auto sent = sent_by(m, rank);
    // Of two ranks each sends half of a sum's bytes twice. Four blocks, one sum forward and one backward.
    EXPECT_DOUBLE_EQ(of(sent, TrafficKind::kTensor), micro * 4 * 2 * value);
    EXPECT_DOUBLE_EQ(of(m.at(rank, rank ^ 1), TrafficKind::kTensor), micro * 4 * 2 * value);
    // Gradients of half of four blocks, and of half of an embedding or head.
    const double parameters = (4 * 8 * kWidth * kWidth + kVocabulary * kWidth) / 2;
    EXPECT_DOUBLE_EQ(of(sent, TrafficKind::kData), 2 * parameters);
    EXPECT_DOUBLE_EQ(of(m.at(rank, rank ^ 2), TrafficKind::kData), 2 * parameters);
    // A value that two ranks share goes to the stage beside.
    EXPECT_DOUBLE_EQ(of(sent, TrafficKind::kPipeline), micro * value / 2);
    EXPECT_DOUBLE_EQ(of(m.at(rank, rank ^ 4), TrafficKind::kPipeline), micro * value / 2);
    EXPECT_EQ(of(sent, TrafficKind::kContext) + of(sent, TrafficKind::kExpert), 0);
  }
}

// By ZeRO stage: what is scattered, gathered, and summed over the copies of a shard.
TEST(Traffic, BytesOfShardedStates) {
  const double parameters = 2 * kVocabulary * kWidth + 8 * 8 * kWidth * kWidth, value = 2 * parameters, micro = 4;
  for (int zero : {1, 2, 3}) {
    for (int64_t group : {0, 4}) {
      SCOPED_TRACE(cat("ZeRO-", zero, ", groups of ", group));
      PinRecipe pin = pins({{"data", 8}, {"tensor", 1}, {"pipeline", 1}});
      pin.zero = zero;
      if (group) pin.zero_group = group;
      Planned p(kNode, pin);
      auto step = planned_step(p.plan);
      ASSERT_TRUE(step.ok()) << step.status();
      const TrafficMatrix m = traffic_matrix(step->traffic, 1, step->ranks());
      const double n = static_cast<double>(group ? group : 8), round = (n - 1) / n * value;
      const double gathers = zero == 3 ? 2 * micro : 1, scatters = zero == 1 ? 1 : micro;
      const double copies = group ? value / n : 0;  // of two: half of it, twice
      double all = 0;
      for (int64_t rank = 0; rank < 8; ++rank) all += of(sent_by(m, rank), TrafficKind::kData);
      EXPECT_NEAR(all / 8, (gathers + scatters) * round + copies, 1e-6 * round);
      if (group) {
        EXPECT_NEAR(of(m.at(0, 4), TrafficKind::kData), copies, 1e-6 * round);
      }
    }
  }
}

Transfer transfer(const char* collective, const char* algorithm, std::vector<int64_t> levels, double bytes) {
  int64_t n = 1;
  for (int64_t l : levels) n *= l;
  return {TrafficKind::kData, collective, algorithm, {RankAxis{n, 1}, RankAxis{}}, std::move(levels), bytes};
}

// Whatever the algorithm, all ranks together send what an all-reduce or a gather needs, and nobody sends to itself.
TEST(Traffic, AlgorithmsSendWhatTheyMust) {
  for (const std::vector<int64_t>& levels : {std::vector<int64_t>{8}, {4, 2}, {2, 3}, {4, 5}, {2, 2, 3}, {7}, {1, 6}}) {
    for (auto [collective, algorithm] : {std::pair{"all_reduce", "ring"},
                                         {"all_reduce", "tree"},
                                         {"all_reduce", "multicast"},
                                         {"all_reduce", "direct"},
                                         {"all_gather", "ring"},
                                         {"reduce_scatter", "pat"},
                                         {"all_to_all", "all-to-all"}}) {
      const Transfer t = transfer(collective, algorithm, levels, 840);
      const double n = static_cast<double>(t.ranks()), once = 840 * (n - 1);
      double sum = 0;
      messages(t, [&](int64_t from, int64_t to, double bytes) {
        EXPECT_NE(from, to);
        EXPECT_TRUE(from >= 0 && from < t.ranks() && to >= 0 && to < t.ranks());
        sum += bytes;
      });
      EXPECT_NEAR(sum, t.collective == "all_reduce" ? 2 * once : once, 1e-6 * once)
          << algorithm << " over " << testing::PrintToString(levels);
    }
  }
}

TEST(Traffic, RingsGoToTheNextAndTreesLeaveANodeOnce) {
  std::map<std::pair<int64_t, int64_t>, double> sent;
  auto keep = [&](int64_t from, int64_t to, double bytes) { sent[{from, to}] += bytes; };
  messages(transfer("all_gather", "ring", {4, 2}, 8), keep);
  EXPECT_EQ(sent.size(), 8u);
  EXPECT_DOUBLE_EQ((sent[{7, 0}]), 7);
  sent.clear();
  messages(transfer("all_gather", "pat", {8}, 8), keep);
  EXPECT_EQ(sent.size(), 8u * 3);
  EXPECT_DOUBLE_EQ((sent[{6, 2}]), 4);  // 4 further on: all of the half that is not there
  sent.clear();
  messages(transfer("all_reduce", "tree", {4, 2}, 8), keep);
  EXPECT_DOUBLE_EQ((sent[{0, 4}]), 8);  // half of the bytes along each tree
  EXPECT_DOUBLE_EQ((sent[{4, 0}]), 8);
  EXPECT_DOUBLE_EQ((sent[{3, 2}]), 8);
  EXPECT_DOUBLE_EQ((sent[{2, 3}]), 8);
}

TEST(Traffic, BlocksOfRanksHaveTheSameSum) {
  PinRecipe pin = pins({});
  pin.stages = {{{"data", 4}}, {{"data", 1}, {"tensor", 2}}};
  Planned p("nodes: 1\ndevices_per_node: 6\ndevice: A100-80GB\n", pin);
  auto step = planned_step(p.plan);
  ASSERT_TRUE(step.ok()) << step.status();
  const TrafficMatrix ranks = traffic_matrix(step->traffic, 1, step->ranks()),
                      blocks = traffic_matrix(step->traffic, 4, step->ranks());
  EXPECT_EQ(ranks.blocks, 6);
  ASSERT_EQ(blocks.blocks, 2);
  for (TrafficKind kind : {TrafficKind::kTensor, TrafficKind::kData, TrafficKind::kPipeline}) {
    double a = 0, b = 0;
    for (int64_t r = 0; r < 4; ++r) a += of(ranks.at(r, 4), kind) + of(ranks.at(r, 5), kind);
    b = of(blocks.at(0, 1), kind);
    EXPECT_DOUBLE_EQ(a, b);
  }
  // Four ranks send a quarter of a micro-batch each to one of two.
  EXPECT_GT(of(ranks.at(1, 4), TrafficKind::kPipeline), 0);
  EXPECT_EQ(of(ranks.at(1, 5), TrafficKind::kPipeline), 0);
  EXPECT_GT(of(ranks.at(3, 5), TrafficKind::kPipeline), 0);
  EXPECT_DOUBLE_EQ(of(sent_by(ranks, 4), TrafficKind::kPipeline) - of(ranks.at(4, 5), TrafficKind::kPipeline),
                   2 * of(sent_by(ranks, 0), TrafficKind::kPipeline));
}

TEST(PlanViews, PlansThatLackTheirStepAreRefused) {
  Planned p(kNode, pins({{"data", 2}, {"tensor", 2}, {"pipeline", 2}}));
  ASSERT_TRUE(planned_step(p.plan).ok());
  auto refused = [&](auto change) {
    nlohmann::json json = plan_json(p.plan);
    change(json);
    absl::StatusOr<Plan> plan = parse_plan(json.dump());
    const absl::Status status = plan.ok() ? planned_step(*plan).status() : plan.status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  using testing::HasSubstr;
  using J = nlohmann::json;
  EXPECT_THAT(refused([](J& j) { j.erase("after_update"); }), HasSubstr("under 'after_update', found none"));
  EXPECT_THAT(refused([](J& j) { j["stages"][0].erase("traffic"); }), HasSubstr("make the plan again"));
  EXPECT_THAT(refused([](J& j) { j["stages"][1]["chunks"][0]["parts"]["forward"]["compute"] = "x"; }),
              HasSubstr("compute: expected a number"));
  EXPECT_THAT(refused([](J& j) { j["stages"][0]["traffic"][0]["members"][0] = {3, 1}; }), HasSubstr("is no axis of 4"));
  EXPECT_THAT(refused([](J& j) { j["stages"][0]["traffic"][0]["levels"] = {1 << 20}; }),
              HasSubstr("do not make groups"));
  EXPECT_THAT(refused([](J& j) { j["predicted"]["breakdown"]["tensor"] = "x"; }),
              HasSubstr("tensor: expected a number"));
  EXPECT_THAT(refused([](J& j) { j["predicted"]["breakdown"] = {1}; }), HasSubstr("expected seconds by part"));
  EXPECT_THAT(refused([](J& j) { j["pin"]["pipeline"] = 3; }), HasSubstr("expected 2 stages"));
}

TEST(PlanViews, RanksHaveTheirPlaces) {
  Planned p(kNode, pins({{"data", 2}, {"tensor", 2}, {"pipeline", 2}}));
  auto step = planned_step(p.plan);
  ASSERT_TRUE(step.ok()) << step.status();
  EXPECT_EQ(rank_name(*step, 0), "stage 0, data 0, tensor 0; node 0, device 0 (A100-80GB)");
  EXPECT_EQ(rank_name(*step, 7), "stage 1, data 1, tensor 1; node 1, device 3 (A100-80GB)");
}

}  // namespace
}  // namespace partita
