#include "runtime/launch/last_start.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "runtime/record/flight_recorder.h"
#include "runtime/record/flight_view.h"
#include "tests/support/running.h"
#include "tests/support/temp_folder.h"

namespace partita::runtime {
namespace {

namespace fs = std::filesystem;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

// A process that has a rank's record of a start whose ranks have met, and ends as it is told.
class RankProcess {
 public:
  RankProcess(const std::string& folder, int rank, uint64_t start) {
    id_ = ::fork();
    if (id_ != 0) return;
    const auto recorder = FlightRecorder::create(flight_file(folder, rank), rank, 2, FormerRecord::kIsKept);
    if (!recorder.ok()) ::_exit(1);
    if (start != 0) (*recorder)->meet(start);
    (*recorder)->enter(Phase::kStep, 41);
    for (;; ::usleep(20000)) (*recorder)->beat();
  }
  ~RankProcess() { kill(); }
  void kill() {
    if (id_ <= 0) return;
    ::kill(id_, SIGKILL);
    ::waitpid(id_, nullptr, 0);
    id_ = -1;
  }
  pid_t id() const { return id_; }

 private:
  pid_t id_ = -1;
};

bool is_at_work(const std::string& folder, int rank, pid_t process) {
  const auto reader = FlightReader::open(flight_file(folder, rank));
  return reader.ok() && (*reader)->header().process == process && (*reader)->header().phase == Phase::kStep;
}

TEST(LastStart, IsTold_Once_ThenKeptForAnAutopsy) {
  const TempFolder folder;
  EXPECT_EQ(take_last_start(folder.path(), 0), "");
  {
    RankProcess zero(folder.path(), 0, 7), one(folder.path(), 1, 7);
    ASSERT_TRUE(wait_until(
        [&] { return is_at_work(folder.path(), 0, zero.id()) && is_at_work(folder.path(), 1, one.id()); }, 20));
    EXPECT_EQ(take_last_start(folder.path(), 0), "") << "it runs";
    one.kill();
    ::usleep(2500000);  // what is later than a death is noticed
  }
  // A start that comes to nothing before its ranks meet leaves what is known of the one before it.
  {
    RankProcess again(folder.path(), 0, 0);
    ASSERT_TRUE(wait_until([&] { return is_at_work(folder.path(), 0, again.id()); }, 20));
  }
  EXPECT_THAT(take_last_start(folder.path(), 0),
              ContainsRegex("^the last start, of 2 ranks, ended at training step 42: root cause: rank 1 on host .* was "
                            "stopped, hung or was lost: silent for 2.* s before the others ended; training step 42$"));
  EXPECT_EQ(take_last_start(folder.path(), 0), "");
  const auto views = read_flight_records(folder / "former");
  ASSERT_TRUE(views.ok()) << views.status();
  EXPECT_EQ(views->size(), 2U);
  // A clean end takes it along.
  {
    const auto recorder = FlightRecorder::create(flight_file(folder.path(), 0), 0, 1, FormerRecord::kIsKept);
    ASSERT_TRUE(recorder.ok()) << recorder.status();
    (*recorder)->end(FlightEnd::kClean, 0, "");
  }
  EXPECT_FALSE(fs::exists(folder / "former"));
}

TEST(LastStart, OfSlurm_SaysWhatBecameOfTheNode) {
  // As Slurm 22.05 shows it.
  const std::string
      head = "NodeName=h3 Arch=x86_64 CPUAlloc=2 State=",
      rest = " ThreadsPerCore=1 BootTime=2026-11-26T22:59:59 SlurmdStartTime=2026-11-27T09:47:45 CfgTRES=cpu=2";
  constexpr int64_t kSecond = 1'000'000'000;
  EXPECT_EQ(slurm_on_node(head + "DOWN*" + rest + " Reason=Not responding [slurm@2026-11-27T09:48:33]", 0),
            "Slurm: node 'h3' is DOWN* (Not responding)");
  EXPECT_EQ(slurm_on_node(head + "ALLOCATED" + rest, 0), "Slurm: node 'h3' was booted at 2026-11-26T22:59:59");
  std::tm noon{.tm_hour = 12, .tm_mday = 26, .tm_mon = 10, .tm_year = 126, .tm_isdst = -1};
  const int64_t before = static_cast<int64_t>(std::mktime(&noon));
  EXPECT_THAT(slurm_on_node(head + "IDLE" + rest, (before + 12 * 3600) * kSecond),
              HasSubstr("has a slurmd that was started at 2026-11-27T09:47:45"));
  EXPECT_EQ(slurm_on_node(head + "IDLE" + rest, (before + 36 * 3600) * kSecond), "");
  EXPECT_EQ(slurm_on_node("slurm_load_node error: Unable to contact slurm controller", 0), "");
}

}  // namespace
}  // namespace partita::runtime
