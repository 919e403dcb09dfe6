#include "runtime/launch/timeouts.h"

#include <gtest/gtest.h>

#include "base/cat.h"

namespace partita::runtime {
namespace {

using std::chrono::milliseconds;

TEST(TimeLimits, FollowTheMedianStep_WithinTheirLeast) {
  TimeLimits limits({});
  EXPECT_EQ(limits.of(Phase::kStep), milliseconds(600'000));
  for (double s : {90.0, 2.0, 4.0}) limits.step_took(s);
  EXPECT_EQ(limits.of(Phase::kStep), milliseconds(40'000));
  EXPECT_EQ(limits.of(Phase::kData), milliseconds(40'000));
  EXPECT_EQ(limits.of_collective(Phase::kStep), milliseconds(40'000));
  EXPECT_EQ(limits.of(Phase::kStart), milliseconds(600'000));
  EXPECT_EQ(limits.of_collective(Phase::kCheckpoint), milliseconds(40'000));
  EXPECT_EQ(limits.of_collective(Phase::kEvaluation), milliseconds(1'800'000));
  for (int k = 0; k < 100; ++k) limits.step_took(0.01);
  EXPECT_EQ(limits.of(Phase::kStep), milliseconds(30'000));
}

TEST(TimeLimits, WhatIsFixedCounts) {
  Timeouts fixed;
  EXPECT_TRUE(fixed.set("collective=2.5").ok());
  EXPECT_TRUE(fixed.set("start=7").ok());
  const TimeLimits limits(fixed);
  EXPECT_EQ(limits.of_collective(Phase::kStep), milliseconds(2500));
  EXPECT_EQ(limits.of_collective(Phase::kStart), milliseconds(7000));
  for (const char* bad : {"", "step", "step=", "step=0", "step=-1", "steps=3", "step=x", "step=1e30"})
    EXPECT_FALSE(fixed.set(bad).ok()) << bad;
  for (const char* bad : {"step=0", "step=nan", "step=1e10", "step=x"})
    EXPECT_EQ(std::string(fixed.set(bad).message()),
              cat("--timeout '", bad, "': expected seconds above 0 and up to 10000000"));
  EXPECT_EQ(std::string(fixed.set("steps=3").message()),
            "--timeout 'steps=3': expected PHASE=SECONDS with a phase of start, data, step, collective, checkpoint, "
            "evaluation");
}

}  // namespace
}  // namespace partita::runtime
