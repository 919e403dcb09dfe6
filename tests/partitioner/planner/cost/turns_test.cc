// Micro-batches that take turns: what they hide, what they take in memory, and which layouts they are for.
#include <gtest/gtest.h>

#include "partitioner/planner/cost/cost_model.h"
#include "tests/partitioner/support/search_problems.h"

namespace partita {
namespace {

class Turns : public OwnPrograms {
 protected:
  Turns() : OwnPrograms(2, 64) {}
  static Layout layout(int64_t tensor, int64_t pipeline = 1) {
    Layout l;
    l.tensor = tensor, l.pipeline = pipeline, l.data = 16 / tensor / pipeline;
    return l;
  }
};

TEST_F(Turns, HideSumsOverATensorAxisForTheMemoryOfAnotherMicroBatch) {
  CostModel model(problem_);
  for (const Layout& l : {layout(8), layout(8, 2)}) {
    Layout in_turns = l;
    in_turns.overlap_micro_batches = 2;
    EXPECT_EQ(model.taking_turns(l), l.pipeline > 1 ? std::nullopt : std::optional(in_turns)) << describe(l);
    const Prediction before = model.predict(l, true), after = model.predict(in_turns, true);
    EXPECT_LT(after.step_seconds, before.step_seconds);
    EXPECT_LT(after.breakdown.tensor, 0.5 * before.breakdown.tensor);
    EXPECT_DOUBLE_EQ(after.breakdown.compute, before.breakdown.compute);
    EXPECT_DOUBLE_EQ(after.memory[0].activations, 2 * before.memory[0].activations);
    // What a bound leaves out is below both.
    EXPECT_LE(model.lower_bound(in_turns), after.step_seconds);
    Layout alone = l;
    alone.overlap_micro_batches = 1, alone.overlap_products = 1;
    EXPECT_GT(model.lower_bound(alone), model.lower_bound(in_turns));
    EXPECT_LE(model.lower_bound(alone), before.step_seconds);
  }
}

TEST_F(Turns, AreNotForWhatSendsNothingWithinAPass) {
  CostModel model(problem_);
  EXPECT_FALSE(model.taking_turns(layout(1)).has_value());
  Layout one = layout(8);
  one.micro_batch = 32;  // all that a rank has
  EXPECT_FALSE(model.taking_turns(one).has_value());
  problem_.own_programs = false;
  CostModel published(problem_);
  EXPECT_FALSE(published.taking_turns(layout(8)).has_value());
}

}  // namespace
}  // namespace partita
