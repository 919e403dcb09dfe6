// Parts of the optimizer's states on the host.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/partitioner/support/search_problems.h"

namespace partita {
namespace {

// Four GPUs of 24 GB, which have no room for half of its states.
class OffloadSearch : public OwnPrograms {
 protected:
  OffloadSearch() : OwnPrograms(cluster(1, 4, "RTX-4090"), 16) {}
  Candidate best(const SearchOptions& options) {
    CostModel model(problem_);
    auto found = search(model, options);
    EXPECT_TRUE(found.ok() && found->best) << found.status();
    return *found->best;
  }
};

TEST_F(OffloadSearch, TheHostHasNoMoreThanItMust) {
  const Candidate found = best({});
  EXPECT_EQ(found.layout.offload, OffloadMode::kOptimizer) << describe(found.layout);
  EXPECT_LT(found.layout.offload_fraction, 1) << describe(found.layout);
  for (const OffloadMode mode : {OffloadMode::kNone, OffloadMode::kOptimizer, OffloadMode::kAll}) {
    SearchOptions whole;
    whole.pin.offload = mode;
    if (mode == OffloadMode::kOptimizer) whole.pin.offload_fraction = 1;
    CostModel model(problem_);
    auto other = search(model, whole);
    ASSERT_TRUE(other.ok()) << other.status();
    if (other->best) {
      EXPECT_GT(other->best->prediction.step_seconds, found.prediction.step_seconds) << describe(other->best->layout);
    }
  }
}

TEST_F(OffloadSearch, APinnedPartIsTaken) {
  SearchOptions options;
  options.pin.offload = OffloadMode::kOptimizer, options.pin.offload_fraction = 0.6;
  EXPECT_EQ(best(options).layout.offload_fraction, 0.6);
}

TEST_F(OffloadSearch, WhatIsNeededIsTheLeastThatFits) {
  CostModel model(problem_);
  int some = 0;
  for (int64_t tensor : {1, 2, 4}) {
    for (int zero : {0, 1, 2, 3}) {
      Layout l;
      l.tensor = tensor, l.data = 4 / tensor, l.zero = zero, l.offload = OffloadMode::kOptimizer;
      l.recompute = RecomputeMode::kFull;
      const double needed = model.offload_needed(l);
      l.offload_fraction = 1;
      ASSERT_EQ(std::isinf(needed), !model.predict(l, false).fits) << describe(l);
      if (std::isinf(needed)) continue;
      ASSERT_LE(needed, 1) << describe(l);
      if (needed == 0) continue;
      l.offload_fraction = needed;
      EXPECT_TRUE(model.predict(l, false).fits) << describe(l);
      l.offload_fraction = needed - 1. / 64;
      EXPECT_FALSE(model.predict(l, false).fits) << describe(l);
      ++some;
    }
  }
  EXPECT_GT(some, 2);
}

// The host's update takes its time by the part that it has, beside the device's.
TEST_F(OffloadSearch, TheUpdateTakesItsTimeByThePart) {
  CostModel model(problem_);
  Layout l;
  l.tensor = 4, l.offload = OffloadMode::kOptimizer;
  auto update = [&](double part) {
    l.offload_fraction = part;
    return model.predict(l, false).breakdown.optimizer;
  };
  EXPECT_NEAR(update(0.5) / update(1), 0.5, 0.01);
  EXPECT_NEAR(update(0.25) / update(1), 0.25, 0.01);
}

}  // namespace
}  // namespace partita
