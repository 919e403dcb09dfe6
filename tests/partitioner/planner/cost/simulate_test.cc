// Bubbles equal theory to the slot: with forward 1 and backward 2, m micro-batches and p stages.
#include "partitioner/planner/cost/simulate.h"

#include <gtest/gtest.h>

#include <set>

namespace partita {
namespace {

Simulation uniform(PipelineSchedule schedule, int64_t p, int64_t m, int64_t v, double f, double b, double w = 0) {
  Simulation s;
  s.micro_batches = m, s.schedule = schedule;
  double n = static_cast<double>(v);
  s.chunks.assign(static_cast<size_t>(p), std::vector<StageTimes>(static_cast<size_t>(v), {f / n, b / n, w / n}));
  return s;
}

TEST(Simulate, GpipeAnd1f1bLeaveTheSameBubble) {
  for (int64_t p : {1, 2, 4, 8})
    for (int64_t m : {8, 16, 24})
      for (auto schedule : {PipelineSchedule::kGpipe, PipelineSchedule::k1f1b}) {
        double want = 3.0 * static_cast<double>(m + p - 1);
        EXPECT_NEAR(simulate(uniform(schedule, p, m, 1, 1, 2)).seconds, want, 1e-9) << p << " " << m;
      }
}

TEST(Simulate, InterleavingDividesTheBubble) {
  for (int64_t p : {2, 4, 8})
    for (int64_t v : {1, 2, 4})
      for (int64_t m : {8, 16, 32}) {
        double want = 3.0 * static_cast<double>(m) + 3.0 * static_cast<double>(p - 1) / static_cast<double>(v);
        EXPECT_NEAR(simulate(uniform(PipelineSchedule::kInterleaved, p, m, v, 1, 2)).seconds, want, 1e-9)
            << p << " " << v << " " << m;
      }
}

// ZB-H1 (Qi et al. 2023): (p - 1)(F + B - W) instead of (p - 1)(F + B + W).
TEST(Simulate, ZeroBubbleFillsWithWeightGradients) {
  for (int64_t p : {2, 4, 8})
    for (int64_t m : {16, 32}) {
      double t = simulate(uniform(PipelineSchedule::kZeroBubble, p, m, 1, 1, 1, 1)).seconds;
      EXPECT_NEAR(t, 3.0 * static_cast<double>(m) + static_cast<double>(p - 1), 1e-9) << p << " " << m;
    }
}

TEST(Simulate, MemoryOf1f1bIsBoundByStages) {
  Timeline t = simulate(uniform(PipelineSchedule::k1f1b, 4, 32, 1, 1, 2));
  EXPECT_EQ(t.most_in_flight, (std::vector<int64_t>{4, 3, 2, 1}));
  t = simulate(uniform(PipelineSchedule::kGpipe, 4, 32, 1, 1, 2));
  EXPECT_EQ(t.most_in_flight, (std::vector<int64_t>{32, 32, 32, 32}));
}

TEST(Simulate, EveryOperationRunsOnceAndStagesNeverOverlap) {
  for (auto schedule : {PipelineSchedule::kGpipe, PipelineSchedule::k1f1b, PipelineSchedule::kInterleaved,
                        PipelineSchedule::kZeroBubble}) {
    int64_t v = schedule == PipelineSchedule::kInterleaved ? 2 : 1;
    Timeline t = simulate(uniform(schedule, 4, 8, v, 1, 2, 1), true);
    std::set<std::tuple<int, int, int, int64_t>> seen;
    std::vector<double> end(4, 0);
    for (const Event& e : t.events) {
      EXPECT_TRUE(seen.insert({static_cast<int>(e.kind), e.stage, e.chunk, e.micro_batch}).second);
      EXPECT_GE(e.start, end[static_cast<size_t>(e.stage)] - 1e-12);
      end[static_cast<size_t>(e.stage)] = e.end;
    }
    size_t kinds = schedule == PipelineSchedule::kZeroBubble ? 3 : 2;
    EXPECT_EQ(seen.size(), kinds * 4 * 8 * static_cast<size_t>(v));
  }
}

TEST(Simulate, SlowStageBinds) {
  Simulation s = uniform(PipelineSchedule::k1f1b, 4, 16, 1, 1, 2);
  s.chunks[2][0] = {2, 4, 0};
  // It starts when two stages have passed the first micro-batch on (2), waits once for the stage after it (1), works
  // 96, and two stages have a backward left to do (4).
  EXPECT_NEAR(simulate(s).seconds, 2 + 1 + 16 * 6 + 4, 1e-9);
}

TEST(Simulate, SendsAreWaitedForOnceEachWay) {
  Simulation s = uniform(PipelineSchedule::kGpipe, 2, 4, 1, 1, 2);
  s.send = 0.5;
  EXPECT_NEAR(simulate(s).seconds, 3.0 * 5 + 2 * 0.5, 1e-9);
}

// A slow link has one message under way at a time: the last of four leaves after the three before it.
TEST(Simulate, MessagesOfALinkFollowEachOther) {
  Simulation s = uniform(PipelineSchedule::kGpipe, 2, 4, 1, 1, 2);
  s.send = 5;
  // Forward: the first pass, four messages, the last pass; then a message back every 5, and the last backward.
  EXPECT_NEAR(simulate(s).seconds, 1 + 4 * 5 + 1 + 2 + 4 * 5 + 2, 1e-9);
  s.send = 4, s.send_waited = 1;  // of the passes' last second
  EXPECT_NEAR(simulate(s).seconds, 4 * 5 + 1 + 1 + 4 * 5 + 2, 1e-9);
}

}  // namespace
}  // namespace partita
