#include "runtime/execute/team_size.h"

#include <functional>
#include <map>

#include "gtest/gtest.h"

namespace partita::runtime {
namespace {

// A training step of `products` products of so many floating point operations, in `micro_batches`.
Program program_of(int products, int64_t flops, int micro_batches = 1) {
  Program p;
  ProgramSegment& segment = p.segments.emplace_back();
  for (int k = 0; k < products; ++k) segment.steps.push_back({.kind = StepKind::kLibrary, .bytes = 1, .flops = flops});
  for (int m = 0; m < micro_batches; ++m) p.schedule.push_back({.segment = 0, .micro_batch = m});
  return p;
}

TEST(TeamSize, SmallSteps_AreOneThreads) {
  EXPECT_EQ(team_size(program_of(8, 6'400'000), 2), 1);
  EXPECT_EQ(team_size(program_of(8, 6'400'000), 16), 1);
  EXPECT_EQ(team_size(program_of(8, 6'400'000, 100), 16), 1);  // not fewer meetings
  EXPECT_EQ(team_size(program_of(1, 0), 4), 1);
}

TEST(TeamSize, LargeSteps_AreTheTeams) {
  EXPECT_EQ(team_size(program_of(1, 64'000'000), 2), 2);
  EXPECT_EQ(team_size(program_of(8, 64'000'000), 16), 16);
  EXPECT_EQ(team_size(program_of(8, 64'000'000), 1), 1);
}

TEST(TeamSize, MemoryCounts) {
  Program p = program_of(1, 0);
  p.segments[0].steps[0] = {.kind = StepKind::kKernel, .bytes = 20'000'000, .flops = 1};
  EXPECT_EQ(team_size(p, 2), 2);
  p.segments[0].steps[0].bytes = 200'000;
  EXPECT_EQ(team_size(p, 2), 1);
}

TEST(TeamSize, OfADevice_StaysAsItIs) {
  Program p = program_of(1, 1000);
  p.target = "cuda:sm_90";
  EXPECT_EQ(team_size(p, 4), 4);
}

// The sizes of so many steps, of which one with `size` threads takes `seconds(size)`.
std::map<int, int> sizes_of(TeamChoice& choice, int steps, const std::function<double(int)>& seconds) {
  std::map<int, int> found;
  for (int k = 0; k < steps; ++k) {
    const int size = choice.size();
    ++found[size];
    choice.took(seconds(size));
  }
  return found;
}

TEST(TeamChoice, TakesWhatTookLeast_AndLooksAtItsNeighboursSeldom) {
  TeamChoice choice(6);
  const auto seconds = [](int size) { return size == 2 ? 1e-4 : 1.5e-4; };
  EXPECT_EQ(sizes_of(choice, 256, seconds), (std::map<int, int>{{1, 64}, {2, 64}, {4, 64}, {6, 64}}));
  const std::map<int, int> found = sizes_of(choice, 100'000, seconds);
  EXPECT_GT(found.at(2), 97'000);
  EXPECT_GT(found.at(1), 0);
  EXPECT_GT(found.at(4), 0);
  EXPECT_EQ(found.count(6), 0u);
}

// A busy process beside it: threads that wait for each other then wait for a core in one step of twenty.
TEST(TeamChoice, StepsThatBecomeSlower_AreTriedAgain) {
  TeamChoice choice(2);
  EXPECT_GT(sizes_of(choice, 2000, [](int size) { return size == 2 ? 1.2e-4 : 1.8e-4; })[2], 1700);
  int step = 0;
  const auto busy = [&](int size) { return size == 2 ? ++step % 20 == 0 ? 3e-3 : 1.2e-4 : 1.8e-4; };
  EXPECT_GT(sizes_of(choice, 2000, busy)[1], 1500);
  // And back.
  EXPECT_GT(sizes_of(choice, 20'000, [](int size) { return size == 2 ? 1.2e-4 : 1.8e-4; })[2], 10'000);
}

}  // namespace
}  // namespace partita::runtime
