// How far ahead a plan gathers parameters: what is waited for, what is moved, and the memory that it takes.
#include <gtest/gtest.h>

#include <optional>

#include "partitioner/planner/cost/cost_model.h"
#include "tests/partitioner/support/search_problems.h"

namespace partita {
namespace {

class Prefetch : public OwnPrograms {
 protected:
  Prefetch() : OwnPrograms(8, 256) {}
  static Layout zero3(std::optional<int64_t> blocks) {
    Layout l;
    l.data = 64, l.zero = 3, l.micro_batch = 2, l.prefetch_blocks = blocks;
    return l;
  }
};

TEST_F(Prefetch, FurtherAheadIsFasterAndTakesABlockEach) {
  CostModel model(problem_);
  Layout l = model.with_exchanges(zero3({}));
  EXPECT_EQ(l.prefetch_blocks, 1);
  Prediction before = model.predict(l, false);
  const std::vector<Layout> further = model.prefetching_further(l);
  ASSERT_GE(further.size(), 3u);
  for (const Layout& more : further) {
    const Prediction now = model.predict(more, false);
    EXPECT_LT(now.step_seconds, before.step_seconds);
    EXPECT_LT(now.breakdown.gathers, before.breakdown.gathers);
    EXPECT_GT(now.memory[0].transient, before.memory[0].transient);
    before = now;
  }
  l.prefetch_blocks = 0;
  EXPECT_GT(model.predict(l, false).step_seconds, model.predict(zero3(1), false).step_seconds);
}

// What backward finds gathered is gathered once a micro-batch.
TEST_F(Prefetch, WhatIsKeptTravelsOnce) {
  CostModel model(problem_);
  auto gathered = [&](int64_t blocks) {
    const PlanTraffic traffic = model.traffic(zero3(blocks));
    double bytes = 0;
    for (const Transfer& t : traffic.stages[0].transfers) {
      if (t.collective == "all_gather") bytes += t.bytes;
    }
    return bytes;
  };
  EXPECT_NEAR(gathered(100) / gathered(0), 0.5, 0.02);
  EXPECT_LT(gathered(4), gathered(1));
}

// Where compute hides all but the first, a block ahead is enough.
TEST_F(Prefetch, OneBlockAheadIsEnoughWhereItHidesAll) {
  problem_.global_batch = 1024;
  Layout l = zero3({});
  l.micro_batch = 16;
  CostModel model(problem_);
  EXPECT_TRUE(model.prefetching_further(model.with_exchanges(l)).empty());
}

TEST_F(Prefetch, OtherLayoutsAndSoftwareAreLeftAlone) {
  for (int zero : {0, 1, 2}) {
    Layout l = zero3({});
    l.zero = zero;
    CostModel model(problem_);
    EXPECT_EQ(model.with_exchanges(l).prefetch_blocks, std::nullopt);
    EXPECT_TRUE(model.prefetching_further(l).empty());
  }
  problem_.own_programs = false;
  CostModel published(problem_);
  EXPECT_EQ(published.with_exchanges(zero3({})), zero3({}));
}

}  // namespace
}  // namespace partita
