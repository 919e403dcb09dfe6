#include "runtime/execute/team_size.h"

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

}  // namespace
}  // namespace partita::runtime
