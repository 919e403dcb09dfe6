#include "runtime/metrics/rank_times.h"

#include <thread>

#include "gtest/gtest.h"
#include "runtime/transports/collective_threads.h"

namespace partita::runtime {
namespace {

// What rank 0 saw, of ranks whose own work takes so long in each step.
std::vector<RankTimes::Seen> seen(const std::vector<std::vector<double>>& own, double whole,
                                  const std::vector<int64_t>& stages) {
  ThreadWorld world(static_cast<int>(stages.size()));
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (size_t r = 0; r < stages.size(); ++r) communicators.push_back(*world.communicator(static_cast<int>(r)));
  std::vector<RankTimes::Seen> all;
  std::vector<std::thread> team;
  for (size_t r = 0; r < stages.size(); ++r) {
    team.emplace_back([&, r] {
      RankTimes times(*communicators[r], stages);
      for (const std::vector<double>& step : own) {
        const auto now = times.add(step[r], whole);
        ASSERT_TRUE(now.ok()) << now.status();
        if (r == 0 && *now != nullptr) all.push_back(**now);
      }
    });
  }
  for (std::thread& t : team) t.join();
  return all;
}

TEST(RankTimes, ASlowRankIsToldOnceAfterTwentySteps) {
  std::vector<std::vector<double>> own(30, {1, 1, 1.5, 1});
  const auto all = seen(own, 1.5, {0, 0, 0, 0});
  ASSERT_EQ(all.size(), 29u);  // of steps of a second each; the first warms up
  for (size_t k = 0; k < all.size(); ++k) {
    EXPECT_EQ(all[k].slowest.rank, 2);
    EXPECT_NEAR(all[k].slowest.ratio, 1.5, 1e-6);
    EXPECT_EQ(all[k].slowest.tell, k + 1 == static_cast<size_t>(RankTimes::kSteps)) << k;
  }
}

TEST(RankTimes, ShortStepsAreLookedAtOnceASecond) {
  const auto all = seen(std::vector<std::vector<double>>(402, {0.004, 0.006}), 0.01, {0, 0});
  ASSERT_EQ(all.size(), 5u);  // after one step, and then after a hundred each
  EXPECT_NEAR(all[1].seconds[1], 0.006, 1e-6);
  EXPECT_EQ(all[1].slowest.rank, 1);
  EXPECT_TRUE(all[1].slowest.tell);
  EXPECT_FALSE(all[2].slowest.tell);
}

TEST(RankTimes, MicrosecondsAreNoSlowRank) {
  for (const RankTimes::Seen& s : seen(std::vector<std::vector<double>>(64, {2e-4, 4e-4}), 1, {0, 0}))
    EXPECT_EQ(s.slowest.steps, 0);
}

// Stages have work of their own; a rank that recovers is told again when it is slow again.
TEST(RankTimes, RanksAreHeldAgainstThoseOfTheirStage) {
  EXPECT_EQ(seen(std::vector<std::vector<double>>(25, {1, 3, 1, 3}), 3, {0, 1, 0, 1}).back().slowest.ratio, 1);
  std::vector<std::vector<double>> own(64, {1, 2});
  for (size_t k = 25; k < 30; ++k) own[k] = {1, 1};
  int told = 0;
  for (const RankTimes::Seen& s : seen(own, 2, {0, 0})) told += s.slowest.tell;
  EXPECT_EQ(told, 2);
}

}  // namespace
}  // namespace partita::runtime
