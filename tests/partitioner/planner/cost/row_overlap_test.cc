// Products in parts of rows: what they hide of what the tensor axis sends, and what they take.
#include <gtest/gtest.h>

#include "partitioner/planner/cost/cost_model.h"
#include "tests/partitioner/support/search_problems.h"

namespace partita {
namespace {

class RowOverlap : public OwnPrograms {
 protected:
  RowOverlap() : OwnPrograms(2, 64) {}
  static Layout layout(int64_t tensor, int64_t pipeline = 1) {
    Layout l;
    l.tensor = tensor, l.pipeline = pipeline, l.data = 16 / tensor / pipeline, l.micro_batch = 4;
    return l;
  }
  static Layout in_parts(Layout l, int64_t parts) {
    l.overlap_products = parts;
    return l;
  }
};

TEST_F(RowOverlap, LeavesAPartOfEachCollectiveToWaitFor) {
  CostModel model(problem_);
  for (Layout l : {layout(8), layout(8, 2)}) {
    for (bool scattered : {false, true}) {
      l.sequence_parallel = scattered;
      const Prediction whole = model.predict(in_parts(l, 1), true), two = model.predict(in_parts(l, 2), true),
                       four = model.predict(in_parts(l, 4), true);
      EXPECT_LT(two.step_seconds, whole.step_seconds) << describe(l);
      EXPECT_LT(two.breakdown.tensor, 0.6 * whole.breakdown.tensor);
      EXPECT_GE(two.breakdown.tensor, 0.5 * whole.breakdown.tensor);
      EXPECT_LT(four.breakdown.tensor, two.breakdown.tensor);
      // Products of fewer rows, copies, and what a collective slows.
      EXPECT_GT(two.breakdown.compute, whole.breakdown.compute);
      EXPECT_GT(two.breakdown.overlap, whole.breakdown.overlap);
      // What a bound leaves out is below all, and tighter where the parts are pinned.
      for (const Prediction* p : {&whole, &two, &four}) EXPECT_LE(model.lower_bound(l), p->step_seconds);
      EXPECT_LE(model.lower_bound(in_parts(l, 2)), two.step_seconds);
    }
  }
}

TEST_F(RowOverlap, IsSearchedWhereItIsFaster) {
  CostModel model(problem_);
  const auto found = model.with_products_in_parts(layout(8));
  ASSERT_TRUE(found);
  EXPECT_GT(found->row_parts(), 1);
  EXPECT_LT(model.predict(*found, false).step_seconds, model.predict(layout(8), false).step_seconds);
  EXPECT_FALSE(model.with_products_in_parts(layout(1)));
  EXPECT_FALSE(model.with_products_in_parts(in_parts(layout(8), 2)));
  problem_.own_programs = false;
  CostModel published(problem_);
  EXPECT_FALSE(published.with_products_in_parts(layout(8)));
}

// Nothing divides: one sample of an odd number of positions.
TEST_F(RowOverlap, NeedsRowsThatDivide) {
  workload_.sequence = 2047;
  CostModel model(problem_);
  Layout one = layout(8);
  one.micro_batch = 1;
  EXPECT_DOUBLE_EQ(model.predict(in_parts(one, 2), false).step_seconds, model.predict(one, false).step_seconds);
}

}  // namespace
}  // namespace partita
