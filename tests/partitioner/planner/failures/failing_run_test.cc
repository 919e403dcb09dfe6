#include "partitioner/planner/failures/failing_run.h"

#include <gtest/gtest.h>

#include <cmath>

namespace partita {
namespace {

constexpr double kHour = 3600, kDay = 86400;

// 100 nodes, of which one fails every 5 hours; 20 days of steps of 2 s. Repairs take no time.
FailingRun plain_run() {
  FailingRun r;
  r.sizes = {{100, 2}};
  r.steps = 20 * kDay / 2;
  r.rates.node_mtbf = 500 * kHour;
  r.devices_per_node = 0;
  r.checkpoint_wait = 60;
  return r;
}

TEST(FailingRun, WithoutFailuresNothingIsLost) {
  FailingRun r = plain_run();
  r.rates.node_mtbf = 0;
  const PlayedRun one = play(r, 900, 1);
  EXPECT_DOUBLE_EQ(one.times.total(), 20 * kDay + std::ceil(r.steps / 900) * 60);
  EXPECT_EQ(one.failures, 0);
  EXPECT_EQ(best_interval(r, 10, 1), r.steps);
}

// Failures at a steady rate, during restarts too: the time that Daly's formula gives.
TEST(FailingRun, TakesAsLongAsDalySays) {
  FailingRun r = plain_run();
  r.rates.restart = 300;
  const double mtbf = 5 * kHour;
  for (double interval : {150., 675., 3600.}) {
    const ExpectedRun e = expected(r, interval, 400, 7);
    // It begins without a restart, and its last interval ends the run.
    const double daly = daly_time(20 * kDay, interval * 2, 60, 300, mtbf);
    EXPECT_NEAR(e.times.total() / daly, 1, 0.01) << interval;
    EXPECT_NEAR(e.failures / (e.times.total() / mtbf), 1, 0.03) << interval;
    EXPECT_NEAR(e.times.training, 20 * kDay, 1);
    EXPECT_LT(e.low, e.times.total());
    EXPECT_GT(e.high, e.times.total());
  }
}

TEST(FailingRun, BestIntervalIsDalys) {
  FailingRun r = plain_run();
  const double daly = daly_interval(60, 5 * kHour);
  EXPECT_NEAR(young_interval(60, 5 * kHour), 1469.7, 0.1);
  EXPECT_NEAR(daly, 1430, 1);
  const double found = best_interval(r, 200, 3) * 2;
  EXPECT_GT(found, daly / 1.7);
  EXPECT_LT(found, daly * 1.7);
  // As short as there, and shorter than far from it.
  const double best = expected(r, found / 2, 200, 3).times.total();
  EXPECT_LE(best, 1.001 * expected(r, std::round(daly / 2), 200, 3).times.total());
  EXPECT_LT(best, expected(r, daly * 4, 200, 3).times.total());
  EXPECT_LT(best, expected(r, daly / 8, 200, 3).times.total());
}

TEST(FailingRun, TheSameSeedIsTheSameRun) {
  const FailingRun r = plain_run();
  EXPECT_EQ(play(r, 700, 5).times.total(), play(r, 700, 5).times.total());
  EXPECT_NE(play(r, 700, 5).times.total(), play(r, 700, 6).times.total());
}

// What is written beside training lasts only when it is complete.
TEST(FailingRun, LosesWhatIsStillWritten) {
  FailingRun r = plain_run();
  r.checkpoint_wait = 0, r.checkpoint_write = 1000;
  const ExpectedRun e = expected(r, 600, 300, 1);  // each 1200 s
  // Half an interval, and what a failure finds unwritten: an interval for 1000 of 1200 s, but in the first one.
  EXPECT_NEAR(e.times.lost / e.failures, 600 + 1000 * std::exp(-1200 / (5 * kHour)), 20);
  // More often than it can be written: training waits for the writer.
  EXPECT_GT(expected(r, 100, 100, 1).times.checkpoints, 15 * kDay);
  EXPECT_GE(best_interval(r, 50, 1) * 2, 1000);
}

TEST(FailingRun, WaitsForRepairsWithoutSpareNodes) {
  FailingRun r = plain_run();
  r.rates.repair = 6 * kHour, r.rates.detect = 120, r.rates.restart = 180;
  const ExpectedRun none = expected(r, 700, 100, 1);
  EXPECT_NEAR(none.times.waiting / none.failures, 6 * kHour, 0.05 * kHour);
  EXPECT_NEAR(none.times.down / none.failures, 300, 10);
  r.spare_nodes = 8;  // some 1.3 are being repaired at a time
  const ExpectedRun spare = expected(r, 700, 100, 1);
  EXPECT_LT(spare.times.waiting, 0.001 * none.times.waiting);
  EXPECT_GT(spare.goodput(r), 1.5 * none.goodput(r));
}

TEST(FailingRun, GoesOnWithFewerNodes) {
  FailingRun r = plain_run();
  r.rates.repair = 6 * kHour;
  const double waiting = expected(r, 700, 100, 1).goodput(r);
  r.sizes.push_back({90, 2.25});
  const ExpectedRun e = expected(r, 700, 100, 1);
  EXPECT_GT(e.goodput(r), 1.2 * waiting);
  EXPECT_GT(e.times.smaller, 0);
  EXPECT_LT(e.times.waiting, 0.01 * e.times.total());
  // Never slower than the smaller plan throughout.
  FailingRun small = plain_run();
  small.sizes = {{90, 2.25}};
  EXPECT_LT(e.times.total(), 1.03 * expected(small, 700, 100, 1).times.total());
}

// One of the nodes is slow half of the time, until a checkpoint finds it.
TEST(FailingRun, StragglersSlowAllSteps) {
  FailingRun r = plain_run();
  r.rates.node_mtbf = 0;
  r.rates.straggler_mtbf = 100 * 10 * kHour;  // every 10 hours
  r.rates.straggler_slowdown = 1.5, r.rates.straggler_noticed = 2 * kHour;
  r.checkpoint_wait = 0;
  const ExpectedRun e = expected(r, 30, 100, 1);  // each minute
  EXPECT_NEAR(e.stragglers, e.times.total() / (12 * kHour), 0.05 * e.stragglers);
  EXPECT_NEAR(e.times.slowed / e.times.total(), 2. / 12 / 3, 0.005);
}

TEST(FailingRun, SomeNeverGetThere) {
  FailingRun r = plain_run();
  r.rates.node_mtbf = kHour;
  EXPECT_TRUE(std::isinf(play(r, r.steps, 1).times.total()));
}

TEST(FailingRun, RatesOfAClusterAreThoseOfItsGroups) {
  Cluster c;
  c.groups.resize(2);
  c.groups[0].nodes = 3, c.groups[0].devices_per_node = 8, c.groups[0].spare_nodes = 1;
  c.groups[1].nodes = 1, c.groups[1].devices_per_node = 4;
  c.groups[0].price_per_hour = 3, c.groups[1].price_per_hour = 2;
  c.groups[0].device.failures.device_mtbf = 100, c.groups[1].device.failures.node_mtbf = 50;
  for (DeviceGroup& g : c.groups) g.device.failures.checkpoint_bandwidth = 1e9, g.device.host_bandwidth = 1e10;
  PinRecipe layout;
  layout.axes = {{"data", 7}, {"tensor", 4}};
  layout.zero = 1;
  const double parameters = 28 * 5e9 / 12;  // 5 GB a rank
  const FailingRun r = failing_run(c, 3, 1000, parameters, layout);
  EXPECT_EQ(r.sizes[0].nodes, 4);
  EXPECT_EQ(r.spare_nodes, 1);
  EXPECT_EQ(r.spares_per_hour, 24);
  EXPECT_NEAR(r.node_failures() * 4, 24. / 100 + 1. / 50, 1e-12);
  EXPECT_DOUBLE_EQ(r.checkpoint_write, 40);
  EXPECT_DOUBLE_EQ(r.checkpoint_wait, 0.5);
  EXPECT_DOUBLE_EQ(r.undisturbed(), 3000);
  layout.zero = 0;  // the ranks of one replica write, of one node
  EXPECT_DOUBLE_EQ(failing_run(c, 3, 1000, parameters, layout).checkpoint_write, 140);
  layout.zero = 3, layout.zero_group = 1;
  EXPECT_DOUBLE_EQ(failing_run(c, 3, 1000, parameters, layout).checkpoint_write, 140);
  layout.zero = 0, layout.zero_group.reset();
  layout.axes = {{"data", 7}, {"pipeline", 4}};  // ranks 0, 7, 14 and 21 write, two of them of one node
  EXPECT_DOUBLE_EQ(failing_run(c, 3, 1000, parameters, layout).checkpoint_write, 70);
}

}  // namespace
}  // namespace partita
