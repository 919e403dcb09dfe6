#include "runtime/launch/supervisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "runtime/launch/launch_environment.h"
#include "runtime/record/flight_recorder.h"

namespace partita::runtime {
namespace {

// A rank that has obeyed, whose own signal ends its process after all.
TEST(Supervisor, DISABLED_ToldRank) {
  const char* descriptor = std::getenv(kRecordVariable);
  ASSERT_NE(descriptor, nullptr);
  const auto record = FlightRecorder::open(std::atoi(descriptor), "", std::atoi(std::getenv("RANK")), 2);
  ASSERT_TRUE(record.ok()) << record.status();
  (*record)->end(FlightEnd::kTold, SIGTERM, "told to stop: the checkpoint of step 3 is there");
  ::signal(SIGINT, SIG_DFL);
  ::raise(SIGINT);
}

TEST(Supervisor, RanksThatLeftAsTheyWereTold_AreNoLostOnes) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const absl::Status end = run_job({.command = {self, "--gtest_also_run_disabled_tests", "--gtest_brief=1",
                                                "--gtest_filter=Supervisor.DISABLED_ToldRank"},
                                    .ranks = 2,
                                    .restarts = {},
                                    .records = "",
                                    .resume = {},
                                    .stop = nullptr});
  EXPECT_EQ(end.code(), absl::StatusCode::kCancelled) << end;
  EXPECT_THAT(std::string(end.message()), testing::HasSubstr("was told to stop by signal 15"));
}

// A rank that is told to save before it listens.
TEST(Supervisor, DISABLED_StartingRank) { ::raise(SIGUSR1); }

TEST(Supervisor, RankThatIsToldToSaveWhileItStarts_IsNotEndedByIt) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const absl::Status end = run_job({.command = {self, "--gtest_also_run_disabled_tests", "--gtest_brief=1",
                                                "--gtest_filter=Supervisor.DISABLED_StartingRank"},
                                    .ranks = 2,
                                    .restarts = {},
                                    .records = "",
                                    .resume = {},
                                    .stop = nullptr});
  EXPECT_TRUE(end.ok()) << end;
}

}  // namespace
}  // namespace partita::runtime
