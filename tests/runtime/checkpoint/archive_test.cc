#include "runtime/checkpoint/checkpoint_archive.h"

#include <filesystem>
#include <future>

#include "base/cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/checkpoint/checkpoint_reader.h"
#include "runtime/launch/rank_watch.h"
#include "tests/runtime/checkpoint/held_states.h"
#include "tests/runtime/objects/held_server.h"
#include "tests/runtime/objects/s3_server.h"
#include "tests/support/running.h"
#include "tests/support/temp_folder.h"

namespace partita::runtime {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<int64_t> archived(const std::string& place, const EnvironmentMap& environment) {
  const TempFolder nowhere;
  auto archive = CheckpointArchive::open({.folder = nowhere.path(), .place = place}, environment);
  EXPECT_TRUE(archive.ok()) << archive.status();
  auto steps = (*archive)->list();
  EXPECT_TRUE(steps.ok()) << steps.status();
  return steps.ok() ? *steps : std::vector<int64_t>();
}

// Checkpoints of one host go to `place`, and another goes on from there.
void check_comes_back(const std::string& place, const EnvironmentMap& environment) {
  const TempFolder here, other;
  CheckpointOptions options{.folder = here.path(), .to = place, .environment = environment, .keep = 2};
  absl::Status saved = save(holder(layouts()[3]), options, {1, 2, 3, 4}, 1);
  ASSERT_TRUE(saved.ok()) << saved;
  EXPECT_EQ(archived(place, environment).back(), 4);
  EXPECT_LE(archived(place, environment).size(), 2u);
  options.folder = other.path();
  saved = save(holder(layouts()[3]), options, {1}, 1);
  EXPECT_EQ(saved.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(saved.message()),
              AllOf(HasSubstr(place), HasSubstr("already holds checkpoints, up to step 4")));
  options.resume = "auto";
  auto different = load(holder(layouts()[4]), options, 5);
  ASSERT_TRUE(different.ok()) << different.status();
  EXPECT_EQ(*different, 0);
  EXPECT_THAT(list_checkpoints(other.path()), ElementsAre(4));
}

TEST(CheckpointArchive, AFolder_ComesBack) {
  const TempFolder place;
  check_comes_back(place / "slow", {});
}

// Who began last copies; nothing of the other's is mixed in.
TEST(CheckpointArchive, ARunThatCopiesToo_IsTold) {
  const TempFolder here, other, place;
  const auto archive_of = [&](const TempFolder& folder, const std::string& writer) {
    return *CheckpointArchive::open({.folder = folder.path(), .place = place.path(), .writer = writer}, {});
  };
  for (const TempFolder* folder : {&here, &other})
    ASSERT_TRUE(save(holder(layouts()[0]), {.folder = folder->path()}, {1, 2}, 1).ok());
  const auto first = archive_of(here, "run 1"), second = archive_of(other, "run 2");
  first->begin(1);
  EXPECT_TRUE(first->finish().ok());
  second->begin(1);
  EXPECT_TRUE(second->finish().ok());
  first->begin(2);
  const absl::Status refused = first->finish();
  EXPECT_THAT(std::string(refused.message()), AllOf(HasSubstr("'run 2'"), HasSubstr("a --checkpoint-to of its own")));
  EXPECT_THAT(archived(place.path(), {}), ElementsAre(1));
}

TEST(CheckpointArchive, TheFolderItself_IsRefused) {
  const TempFolder here;
  const absl::Status same = save(holder(layouts()[3]), {.folder = here.path(), .to = here.path() + "/./"}, {1}, 1);
  EXPECT_EQ(same.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(same.message()), HasSubstr("are the same folder; choose two"));
  EXPECT_THAT(list_checkpoints(here.path()), ElementsAre());
}

TEST(CheckpointArchive, ABucket_ComesBack) {
  if (!fs::exists(python())) GTEST_SKIP() << "no " << python() << ": run tools/install_test_services";
  const S3Server server(4);
  check_comes_back("s3://bucket/run", server.environment());
}

TEST(CheckpointArchive, ItsCopyTakesThePlaceOfADamagedOne) {
  const TempFolder here, place;
  CheckpointOptions options{.folder = here.path(), .to = place.path()};
  ASSERT_TRUE(save(holder(layouts()[3]), options, {1, 2}, 1).ok());
  const std::string states = "step-000000000002/states.safetensors";
  here.write(states, TempFolder::read(here / states).substr(0, 100));
  place.write("step-000000000002/.hidden", "of another program");
  options.resume = "auto";
  auto different = load(holder(layouts()[4]), options, 3);  // of step 2
  ASSERT_TRUE(different.ok()) << different.status();
  EXPECT_EQ(*different, 0);
  // Where both are damaged, the one before.
  for (const TempFolder* folder : {&here, &place}) folder->write(states, "torn");
  different = load(holder(layouts()[4]), options, 2);
  ASSERT_TRUE(different.ok()) << different.status();
  EXPECT_EQ(*different, 0);
}

// What later steps have shown of a checkpoint goes along.
TEST(CheckpointArchive, ABadOne_IsPassedOver) {
  const TempFolder here, other, place;
  const CheckpointOptions options{.folder = here.path(), .to = place.path(), .keep = 0};
  const absl::Status saved =
      on_ranks(holder(layouts()[0]), [&](const Executor& executor, Communicator* communicator) -> absl::Status {
        auto c = Checkpointer::open(options, executor, communicator);
        if (!c.ok()) return c.status();
        for (int64_t step : {1, 2}) {
          fill(executor, static_cast<uint64_t>(step));
          for (const absl::Status& s : {(*c)->save(head(step)), (*c)->finish(), (*c)->leave()}) {
            if (!s.ok()) return s;
          }
          if (step == 1) (*c)->mark_good(1, "test");
        }
        (*c)->mark_bad("test");
        return (*c)->leave();
      });
  ASSERT_TRUE(saved.ok()) << saved;
  EXPECT_TRUE(fs::exists(place / "step-000000000001/good"));
  EXPECT_TRUE(fs::exists(place / "step-000000000002/bad"));
  auto different = load(holder(layouts()[0]), {.folder = other.path(), .to = place.path(), .resume = "auto"}, 1);
  ASSERT_TRUE(different.ok()) << different.status();
  EXPECT_EQ(*different, 0);
}

// Each rank's file lies on a host of its own; the checkpoint is there when all have come.
TEST(CheckpointArchive, FilesOfSeveralHosts_BecomeOne) {
  const TempFolder hosts, place, other;
  const absl::Status saved =
      on_ranks(holder(layouts()[6]), [&](const Executor& executor, Communicator* communicator) -> absl::Status {
        const std::string folder = hosts / std::to_string(communicator->rank());
        fs::create_directories(folder);
        RegionMemory copy;
        CheckpointWriter writer(folder, false, communicator, copy);
        fill(executor, 5);
        CheckpointManifest m = head(3);
        m.shared = false;
        m.ranks = communicator->size();
        m.tensors = kept_tensors(executor.program());
        std::vector<HeldState> held;
        for (const ProgramState& s : executor.program().states) {
          if (is_kept(s))
            held.push_back(
                {held.size(), &s.placement, executor.memory(s.operand), owns_box(s.placement, executor.coordinates())});
        }
        absl::Status status = writer.begin(m, held, executor.coordinates());
        while (status.ok() && !writer.written()) std::this_thread::yield();
        if (status.ok()) status = communicator->run({.kind = CollectiveKind::kBarrier});
        if (status.ok()) status = writer.commit();
        if (status.ok()) status = writer.status();
        if (!status.ok()) return status;
        auto archive = CheckpointArchive::open(
            {.folder = folder, .place = place.path(), .rank = communicator->rank(), .shared = false}, {});
        if (!archive.ok()) return archive.status();
        (*archive)->begin(3);
        return (*archive)->finish();
      });
  ASSERT_TRUE(saved.ok()) << saved;
  auto different = load(holder(layouts()[0]), {.folder = other.path(), .to = place.path(), .resume = "auto"}, 5);
  ASSERT_TRUE(different.ok()) << different.status();
  EXPECT_EQ(*different, 0);
}

// It is tried again until it works, and a run's end waits for three tries alone.
TEST(CheckpointArchive, APlaceThatRefuses_IsTriedAgain) {
  const TempFolder here, place;
  ASSERT_TRUE(save(holder(layouts()[0]), {.folder = here.path()}, {1}, 1).ok());
  auto archive = CheckpointArchive::open({.folder = here.path(), .place = place.path()}, {});
  ASSERT_TRUE(archive.ok()) << archive.status();
  place.write("step-000000000001", "in the way of a folder");
  ::testing::internal::CaptureStderr();
  (*archive)->begin(1);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_EQ((*archive)->in_hand(), 1);
  fs::remove(place / "step-000000000001");
  const absl::Status status = (*archive)->finish();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("warning: the checkpoint of step 1 is not in"), HasSubstr("trying again in 1 s")));
  EXPECT_THAT(archived(place.path(), {}), ElementsAre(1));
}

// The last checkpoint is copied while whoever watches the rank waits.
TEST(CheckpointArchive, APlaceThatHangs_EndsTheRunAndIsTold) {
  const TempFolder here;
  ASSERT_TRUE(save(holder(layouts()[0]), {.folder = here.path()}, {1}, 1).ok());
  HeldServer server;
  auto archive = CheckpointArchive::open({.folder = here.path(), .place = "s3://bucket/run"}, server.environment());
  if (absl::IsFailedPrecondition(archive.status())) GTEST_SKIP() << archive.status();
  ASSERT_TRUE(archive.ok()) << archive.status();
  const auto recorder = FlightRecorder::create("", 0, 1);
  ASSERT_TRUE(recorder.ok()) << recorder.status();
  Timeouts timeouts;
  ASSERT_TRUE(timeouts.set("checkpoint=0.4").ok());
  RankWatch watch(**recorder, timeouts);
  ASSERT_TRUE(watch.join(nullptr).ok());
  watch.enter(Phase::kCheckpoint, 0);
  (*archive)->begin(1);
  std::future<absl::Status> end = std::async(std::launch::async, [&] { return (*archive)->finish(recorder->get()); });
  EXPECT_TRUE(wait_until([&] { return !watch.verdict().ok(); }, 10));
  EXPECT_EQ(watch.verdict().code(), absl::StatusCode::kDeadlineExceeded) << watch.verdict();
  EXPECT_THAT(watch.where(), HasSubstr(cat("copying 'writer' of step-000000000001 to 's3://bucket/run'; the "
                                           "checkpoint is not whole there, it is in '",
                                           here.path(), "/step-000000000001'")));
  server.let_go();
  const absl::Status copied = end.get();
  EXPECT_TRUE(copied.ok()) << copied;
  EXPECT_THAT(watch.where(), Not(HasSubstr("copying")));
  watch.leave();
  archive->reset();
}

}  // namespace
}  // namespace partita::runtime
