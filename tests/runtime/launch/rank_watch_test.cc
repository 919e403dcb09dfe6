#include "runtime/launch/rank_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

namespace partita::runtime {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

TEST(RankWatch, ACheckpoint_MayTakeLongWhileItGetsOn) {
  Timeouts timeouts;
  ASSERT_TRUE(timeouts.set("checkpoint=0.5").ok());
  const auto recorder = FlightRecorder::create("", 0, 1);
  ASSERT_TRUE(recorder.ok()) << recorder.status();
  RankWatch watch(**recorder, timeouts);
  ASSERT_TRUE(watch.join(nullptr).ok());
  watch.enter(Phase::kCheckpoint, 7);
  Clock::time_point last;
  for (const auto end = Clock::now() + milliseconds(1200); Clock::now() < end;) {
    last = Clock::now();
    (*recorder)->progress();
    std::this_thread::sleep_for(milliseconds(20));
  }
  EXPECT_TRUE(watch.verdict().ok()) << watch.verdict();
  while (watch.verdict().ok() && Clock::now() < last + std::chrono::seconds(10))
    std::this_thread::sleep_for(milliseconds(5));
  EXPECT_GE(Clock::now() - last, milliseconds(450));
  EXPECT_EQ(watch.verdict().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(watch.verdict().message()),
              testing::HasSubstr("not done after 0.5 s without progress in the phase checkpoint"));
  watch.leave();
}

}  // namespace
}  // namespace partita::runtime
