// Samples of several lengths: what is predicted of a step is the mean over them.
#include <gtest/gtest.h>

#include <algorithm>

#include "partitioner/planner/cost/cost_model.h"
#include "tests/partitioner/support/search_problems.h"

namespace partita {
namespace {

class CostOfLengths : public testing::Test {
 protected:
  CostOfLengths() {
    both_.length = 4096;
    both_.shorter = {{1024, &short_}};
  }
  Workload long_ = transformer(8, 1024, 4096, 8192), short_ = transformer(8, 1024, 1024, 8192);
  const Cluster cluster_ = nodes_of_eight(1, "bandwidth: 6.25GB/s");
  Problem both_ = problem(long_, cluster_, 32);
};

TEST_F(CostOfLengths, IsTheMeanOfStepsWithAsManyPositions) {
  Layout l;
  l.data = 4, l.pipeline = 2, l.micro_batch = 2;
  Layout of_short = l;
  of_short.micro_batch = 8;
  CostModel model(both_), largest(problem(long_, cluster_, 32)), shorter(problem(short_, cluster_, 128));
  const Prediction mean = model.predict(l, true), a = largest.predict(l, true), b = shorter.predict(of_short, true);
  ASSERT_LT(b.step_seconds, 0.95 * a.step_seconds);  // it attends less
  EXPECT_DOUBLE_EQ(mean.step_seconds, (a.step_seconds + b.step_seconds) / 2);
  EXPECT_DOUBLE_EQ(mean.breakdown.compute, (a.breakdown.compute + b.breakdown.compute) / 2);
  EXPECT_DOUBLE_EQ(mean.flops, (a.flops + b.flops) / 2);
  EXPECT_DOUBLE_EQ(mean.most_memory(), std::max(a.most_memory(), b.most_memory()));
  ASSERT_EQ(mean.lengths.size(), 2u);
  EXPECT_EQ(mean.lengths[0].length, 1024);
  EXPECT_DOUBLE_EQ(mean.lengths[0].step_seconds, b.step_seconds);
  EXPECT_EQ(mean.lengths[1].length, 4096);
  EXPECT_DOUBLE_EQ(mean.lengths[1].step_seconds, a.step_seconds);
  EXPECT_LE(model.lower_bound(l), mean.step_seconds);
  EXPECT_LE(model.balanced_bound(l), mean.step_seconds);
  EXPECT_LT(model.lower_bound(l), largest.lower_bound(l));
}

// The search takes micro-batches of whole samples of each length alone.
TEST_F(CostOfLengths, AllCutMicroBatchesIntoWholeSamples) {
  both_.length = 4096, both_.shorter[0].length = 3072;
  Layout l;
  l.data = 8, l.micro_batch = 1;
  EXPECT_EQ(invalid(both_, l), "a micro-batch of 1 of length 4096 is no whole number of samples of length 3072");
  l.data = 2, l.tensor = 4, l.micro_batch = 16;
  EXPECT_EQ(invalid(both_, l), "a micro-batch of 16 of length 4096 is no whole number of samples of length 3072");
  both_.shorter[0].length = 2048;
  EXPECT_EQ(invalid(both_, l), "");
}

}  // namespace
}  // namespace partita
