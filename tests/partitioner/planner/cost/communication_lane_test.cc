// Passes beside their collectives, by hand.
#include "partitioner/planner/cost/communication_lane.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace partita {
namespace {

LanePass pass(const std::vector<double>& compute, double gather, int64_t prefetched) {
  LanePass p{.prefetched = prefetched};
  for (double c : compute) p.units.push_back({.compute = c, .gather = gather, .gathered_bytes = 1});
  return p;
}

TEST(CommunicationLane, EqualUnitsWaitForTheFirstGather) {
  EXPECT_DOUBLE_EQ(lane_seconds(pass({3, 3, 3, 3}, 2, 1)), 2 + 4 * 3);
  EXPECT_DOUBLE_EQ(lane_seconds(pass({3, 3, 3, 3}, 2, 0)), 4 * (2 + 3));
  // All that travels is waited for where it takes longer, however early it starts.
  for (int64_t prefetched : {1, 2, 4}) EXPECT_DOUBLE_EQ(lane_seconds(pass({1, 1, 1, 1}, 2, prefetched)), 4 * 2 + 1);
}

//   1 ahead:  | G0 | G1 |            | G2 | G3 |        2 ahead:  | G0 | G1 | G2 |       | G3 |
//                  | unit 0 ········ | 1 |  | 2 | | 3 |                | unit 0 ········ | 1 | 2 | 3 |
TEST(CommunicationLane, LongUnitsHideWhatShortOnesNeed) {
  EXPECT_DOUBLE_EQ(lane_seconds(pass({8, 1, 1, 1}, 2, 1)), 15);
  EXPECT_DOUBLE_EQ(lane_seconds(pass({8, 1, 1, 1}, 2, 2)), 13);
  EXPECT_DOUBLE_EQ(lane_seconds(pass({8, 1, 1, 1}, 2, 100)), 13);
}

// What is small beside the largest does not keep the next one back.
TEST(CommunicationLane, SmallGathersHoldUpNothing) {
  LanePass p = pass({3, 1e-9, 3}, 2, 1);
  p.units[1].gather = 0, p.units[1].gathered_bytes = 0.01;
  EXPECT_NEAR(lane_seconds(p), 2 + 3 + 3, 1e-6);
}

TEST(CommunicationLane, ScattersGoInBucketsAndTheLastIsWaitedFor) {
  LanePass p = pass({2, 2, 2, 2}, 0, 1);
  for (LaneUnit& u : p.units) u.scattered_bytes = 1;
  p.bucket_bytes = 2, p.scatter_rate = 1;
  EXPECT_DOUBLE_EQ(lane_seconds(p), 4 * 2 + 2);
  p.bucket_bytes = 0.5;
  EXPECT_DOUBLE_EQ(lane_seconds(p), 4 * 2 + 0.5);
  p.bucket_bytes = 3;  // one, and what is left
  EXPECT_DOUBLE_EQ(lane_seconds(p), 6 + 3 + 1);
}

// A bucket of several units' gradients stands before the next gather, which two units hide and one does not.
TEST(CommunicationLane, BucketsHoldUpGathersThatRunOneUnitAhead) {
  auto seconds = [](int64_t prefetched) {
    LanePass p = pass(std::vector<double>(12, 3), 1.4, prefetched);
    for (LaneUnit& u : p.units) u.scattered_bytes = 1;
    p.bucket_bytes = 3, p.scatter_rate = 1.4;
    return lane_seconds(p);
  };
  const double without_waits = 1.4 + 12 * 3 + 3 * 1.4;
  EXPECT_GT(seconds(1), without_waits + 2);
  EXPECT_NEAR(seconds(4), without_waits, 1e-9);
}

// They stand in the same order: a gather that started before is waited for first.
TEST(CommunicationLane, SumsWaitForWhatStandsBeforeThem) {
  LanePass p = pass({4, 4}, 1, 1);
  for (LaneUnit& u : p.units) u.sums = 1, u.sum_seconds = 1;
  EXPECT_DOUBLE_EQ(lane_seconds(p), 1 + 2 * (4 + 1));
  p.units[1].gather = 4;  // till 1 + 4, where the first sum would start at 3
  EXPECT_DOUBLE_EQ(lane_seconds(p), 1 + 2 + 2 + 1 + 2 + 5);
}

//   one after the other:  | ·· | s | ·· |  twice     in turns:  | a·· | b·· | a·· | b·· |
//                                                    travels         | a    | b
TEST(CommunicationLane, MicroBatchesThatTakeTurnsHideSums) {
  LanePass p = pass({4, 4}, 0, 1);
  for (LaneUnit& u : p.units) u.sums = 1, u.sum_seconds = 1.5;
  EXPECT_DOUBLE_EQ(lane_seconds(p), 2 * (4 + 1.5));
  p.overlapped = 2;
  EXPECT_DOUBLE_EQ(lane_seconds(p), 2 * 2 * 4);
  for (LaneUnit& u : p.units) u.sum_seconds = 3;  // longer than the two seconds until it is its turn again
  EXPECT_DOUBLE_EQ(lane_seconds(p), 2 * (2 + 3 + 3 + 2));
  p.overlapped = 3;
  for (LaneUnit& u : p.units) u.sum_seconds = 2;
  EXPECT_DOUBLE_EQ(lane_seconds(p), 3 * 2 * 4);
  for (LaneUnit& u : p.units) u.sum_seconds = 0;
  EXPECT_DOUBLE_EQ(lane_seconds(p), 3 * 2 * 4);
}

}  // namespace
}  // namespace partita
