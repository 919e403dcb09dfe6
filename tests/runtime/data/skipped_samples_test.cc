#include "runtime/data/order/skipped_samples.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace partita::runtime {
namespace {

std::vector<int64_t> batches(const BatchOrder& order, int64_t first, int64_t end) {
  std::vector<int64_t> all;
  for (int64_t step = first; step < end; ++step) all.push_back(order.batch_of(step));
  return all;
}

TEST(SkippedSamples, BatchesThatOverlapThemAreLeftOut) {
  BatchOrder order(0, 4, 0);
  EXPECT_THAT(batches(order, 0, 4), testing::ElementsAre(0, 1, 2, 3));
  order.skip({8, 4});
  EXPECT_THAT(batches(order, 0, 5), testing::ElementsAre(0, 1, 3, 4, 5));
  order.skip({12, 4});
  EXPECT_THAT(batches(order, 0, 5), testing::ElementsAre(0, 1, 4, 5, 6));
  order.skip({4, 4});
  EXPECT_THAT(batches(order, 0, 3), testing::ElementsAre(0, 4, 5));
  EXPECT_EQ(order.samples_skipped(), 12);
  EXPECT_EQ(order.samples_of(4), (SkippedSamples{16, 4}));
}

// A run that goes on with batches of another size: what it has passed already counts no more.
TEST(SkippedSamples, OfOtherBatches) {
  BatchOrder order(-4, 6, 2);  // step 2 begins at sample 8
  order.skip({0, 4});
  order.skip({18, 4});  // of batches [14, 20) and [20, 26)
  EXPECT_THAT(batches(order, 2, 5), testing::ElementsAre(2, 5, 6));
  BatchOrder overlapping(0, 6, 0);
  overlapping.skip({3, 4});  // of batches 0 and 1
  overlapping.skip({7, 4});  // of batch 1
  EXPECT_THAT(batches(overlapping, 0, 2), testing::ElementsAre(2, 3));
}

}  // namespace
}  // namespace partita::runtime
