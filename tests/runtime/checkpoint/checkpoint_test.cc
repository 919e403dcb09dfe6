#include "runtime/checkpoint/checkpoint.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <filesystem>
#include <set>

#include "base/mix64.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/checkpoint/checkpoint_reader.h"
#include "runtime/checkpoint/checkpoint_writer.h"
#include "runtime/files/npz.h"
#include "runtime/train/trainer.h"
#include "tests/runtime/checkpoint/held_states.h"
#include "tests/runtime/support/program_samples.h"
#include "tests/support/temp_folder.h"

namespace partita::runtime {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Checkpoint, SavedUnderEachLayout_LoadsUnderEachOther_BitForBit) {
  for (const Layout& from : layouts()) {
    const TempFolder folder;
    ASSERT_TRUE(save(holder(from), {.folder = folder.path()}, {7}, 1).ok()) << from.name;
    for (const Layout& to : layouts()) {
      auto different = load(holder(to), {.resume = folder.path()}, 8);
      ASSERT_TRUE(different.ok()) << from.name << " to " << to.name << different.status();
      EXPECT_EQ(*different, 0) << from.name << " to " << to.name;
    }
  }
}

TEST(Checkpoint, SameStates_SameBytesUnderEveryLayout) {
  std::string first;
  for (const Layout& l : layouts()) {
    const TempFolder folder;
    ASSERT_TRUE(save(holder(l), {.folder = folder.path()}, {7}, 1).ok()) << l.name;
    const std::string bytes = TempFolder::read(folder / "step-000000000007/states.safetensors");
    if (first.empty()) first = bytes;
    EXPECT_TRUE(bytes == first) << l.name;
  }
}

TEST(Checkpoint, FilesOfTheirOwn_LoadUnderEachLayout) {
  for (const Layout& from : layouts()) {
    const TempFolder folder;
    const Program program = holder(from);
    const absl::Status saved = on_ranks(program, [&](const Executor& executor, Communicator* communicator) {
      RegionMemory copy;
      CheckpointWriter writer(folder.path(), false, communicator, copy);
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
      // All ranks must have written before one commits.
      if (status.ok()) status = communicator->run({.kind = CollectiveKind::kBarrier});
      if (status.ok()) status = writer.commit();
      return status.ok() ? writer.status() : status;
    });
    ASSERT_TRUE(saved.ok()) << from.name << saved;
    for (const Layout& to : layouts()) {
      auto different = load(holder(to), {.resume = folder.path()}, 5);
      ASSERT_TRUE(different.ok()) << from.name << " to " << to.name << different.status();
      EXPECT_EQ(*different, 0) << from.name << " to " << to.name;
    }
    if (mesh_size(from.mesh) < 4 || from.rows.empty()) continue;
    fs::remove(folder / "step-000000000003/boxes-00001.safetensors");
    auto torn = load(holder(layouts()[0]), {.resume = folder.path()}, 5);
    EXPECT_EQ(torn.status().code(), absl::StatusCode::kDataLoss) << from.name;
    EXPECT_THAT(std::string(torn.status().message()), HasSubstr("boxes-")) << from.name;
  }
}

TEST(Checkpoint, KeepsTheNewest_AndTheBest) {
  const TempFolder folder;
  ASSERT_TRUE(save(holder(layouts()[3]), {.folder = folder.path(), .keep = 2}, {1, 2, 3, 4}, 1).ok());
  EXPECT_EQ(list_checkpoints(folder.path()), (std::vector<int64_t>{3, 4}));
  auto different = load(holder(layouts()[4]), {.folder = folder.path(), .resume = "auto"}, 5);
  ASSERT_TRUE(different.ok()) << different.status();
  EXPECT_EQ(*different, 0);
}

TEST(Checkpoint, OfAnEarlierRun_IsNotOverwritten) {
  const TempFolder folder;
  const CheckpointOptions options{.folder = folder.path()};
  ASSERT_TRUE(save(holder(layouts()[0]), options, {1}, 1).ok());
  const absl::Status again = save(holder(layouts()[0]), options, {1}, 1);
  EXPECT_EQ(again.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(again.message()), HasSubstr("--resume"));
}

TEST(Checkpoint, OfAnotherModel_ListsNamesAndShapes) {
  const TempFolder folder;
  ASSERT_TRUE(save(holder(layouts()[1]), {.folder = folder.path()}, {1}, 1).ok());
  Program other = holder(layouts()[1], {8, 16});
  other.states[2].name = "packed";
  auto loaded = load(other, {.resume = folder.path()}, 1);
  EXPECT_EQ(loaded.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(loaded.status().message()),
              AllOf(HasSubstr("packed bf16[24, 6]"), HasSubstr("qkv bf16[24, 6]"),
                    HasSubstr("'w' is f32[8, 12] and not f32[8, 16]")));
}

TEST(Checkpoint, AnyFlippedBit_IsFound) {
  const TempFolder folder;
  ASSERT_TRUE(save(holder(layouts()[3]), {.folder = folder.path()}, {1}, 1).ok());
  const Program program = holder(layouts()[0]);
  for (const char* name : {"manifest.json", "states.safetensors"}) {
    const std::string path = folder / ("step-000000000001/" + std::string(name)), good = TempFolder::read(path);
    for (size_t k = 0; k < 120; ++k) {
      std::string bad = good;
      const size_t at = mix64(k) % bad.size();
      bad[at] = static_cast<char>(bad[at] ^ (1 << (k % 8)));
      std::ofstream(path, std::ios::binary) << bad;
      auto different = load(program, {.resume = folder.path()}, 2);
      // Blanks and metadata of a file's header carry nothing.
      if (different.ok()) {
        EXPECT_EQ(*different, 0) << name << " at " << at;
        continue;
      }
      EXPECT_TRUE(different.status().code() == absl::StatusCode::kDataLoss ||
                  different.status().code() == absl::StatusCode::kFailedPrecondition)
          << different.status();
    }
    for (size_t size : {size_t{0}, size_t{5}, good.size() / 2, good.size() - 2}) {
      std::ofstream(path, std::ios::binary) << good.substr(0, size);
      EXPECT_EQ(load(program, {.resume = folder.path()}, 2).status().code(), absl::StatusCode::kDataLoss) << size;
    }
    std::ofstream(path, std::ios::binary) << good;
  }
}

TEST(Checkpoint, Damaged_GivesWayToTheOneBefore) {
  const TempFolder folder;
  ASSERT_TRUE(save(holder(layouts()[3]), {.folder = folder.path()}, {1, 2}, 1).ok());
  const std::string path = folder / "step-000000000002/states.safetensors";
  std::string bad = TempFolder::read(path);
  bad.back() = static_cast<char>(bad.back() ^ 4);
  std::ofstream(path, std::ios::binary) << bad;
  auto different = load(holder(layouts()[4]), {.folder = folder.path(), .resume = "auto"}, 2);
  ASSERT_TRUE(different.ok()) << different.status();
  EXPECT_EQ(*different, 0);
  EXPECT_EQ(load(holder(layouts()[4]), {.resume = folder / "step-000000000002"}, 3).status().code(),
            absl::StatusCode::kDataLoss);
}

TEST(Checkpoint, OfANewerVersion_IsRefused) {
  const TempFolder folder;
  ASSERT_TRUE(save(holder(layouts()[0]), {.folder = folder.path()}, {1}, 1).ok());
  const std::string path = folder / "step-000000000001/manifest.json";
  std::string text = TempFolder::read(path);
  const size_t at = text.find("\"version\": 1");
  ASSERT_NE(at, std::string::npos);
  text.replace(at, 12, "\"version\": 2");
  std::ofstream(path, std::ios::binary) << text;
  auto loaded = load(holder(layouts()[0]), {.resume = folder.path()}, 1);
  EXPECT_EQ(loaded.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(loaded.status().message()), HasSubstr("version 2"));
}

TEST(Checkpoint, FullDisk_KeepsTheOneBefore) {
  const TempFolder folder;
  const Program program = holder(layouts()[3], {512, 512});
  ASSERT_TRUE(save(program, {.folder = folder.path()}, {1}, 1).ok());
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{1 << 20, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  ::testing::internal::CaptureStderr();
  const absl::Status full =
      on_ranks(program, [&](const Executor& executor, Communicator* communicator) -> absl::Status {
        auto c = Checkpointer::open({.folder = folder.path(), .resume = "auto"}, executor, communicator);
        if (!c.ok()) return c.status();
        if (auto from = (*c)->resume(); !from.ok()) return from.status();
        if (auto s = (*c)->save(head(2)); !s.ok()) return absl::InternalError("save must only warn");
        return (*c)->finish();
      });
  ::setrlimit(RLIMIT_FSIZE, &before);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
  EXPECT_THAT(said, AllOf(HasSubstr("step 2 was not written"), HasSubstr("step 1 is kept")));
  EXPECT_EQ(list_checkpoints(folder.path()), (std::vector<int64_t>{1}));
  auto different = load(program, {.resume = folder.path()}, 2);
  ASSERT_TRUE(different.ok()) << different.status();
  EXPECT_EQ(*different, 0);
}

// As a file server that fails, or a folder of another user's: a link that leads to itself.
TEST(Checkpoint, AFolderThatCannotBeLookedInto_IsNotEmpty) {
  const TempFolder folder;
  const Program program = holder(layouts()[0]);
  ASSERT_TRUE(save(program, {.folder = folder.path()}, {1}, 1).ok());
  fs::create_directory_symlink("step-000000000002", folder / "step-000000000002");
  for (const char* resume : {"", "auto"}) {
    const auto newest = load(program, {.folder = folder.path(), .resume = resume}, 1);
    EXPECT_THAT(std::string(newest.status().message()),
                AllOf(HasSubstr("cannot look into the checkpoint"), HasSubstr("step-000000000002"),
                      HasSubstr("symbolic links")));
  }
  fs::remove(folder / "step-000000000002");
  fs::remove(folder / "step-000000000001/states.safetensors");
  fs::create_symlink("states.safetensors", folder / "step-000000000001/states.safetensors");
  const auto unread = load(program, {.folder = folder.path(), .resume = "auto"}, 1);
  EXPECT_THAT(std::string(unread.status().message()), AllOf(HasSubstr("symbolic links"), Not(HasSubstr("damaged"))));
}

// Four ranks on two hosts, each with a disk of its own; what a rank makes of every step's checkpoint.
using OfStep = std::function<absl::Status(Checkpointer&, int rank, int64_t step)>;
std::vector<absl::Status> save_on_two_hosts(const std::string& first, const std::string& second,
                                            std::vector<int64_t> steps, const OfStep& saved) {
  std::vector<absl::Status> all(4);
  on_ranks(holder(layouts()[3]), [&](const Executor& executor, Communicator* communicator) -> absl::Status {
    const int rank = communicator->rank();
    auto c = Checkpointer::open({.folder = rank < 2 ? first : second, .keep = 2}, executor, communicator);
    if (!c.ok()) return all[static_cast<size_t>(rank)] = c.status();
    for (int64_t step : steps) {
      fill(executor, static_cast<uint64_t>(step));
      if (auto s = saved(**c, rank, step); !s.ok()) return s;
      if (auto s = (*c)->save(head(step)); !s.ok()) return s;
      all[static_cast<size_t>(rank)] = (*c)->finish();
    }
    return (*c)->leave();
  }).IgnoreError();
  return all;
}

TEST(Checkpoint, HostsWithFoldersOfTheirOwn_KeepWhatTheFirstOneDoes) {
  const TempFolder first, second;
  fs::create_directories(second / ".step-000000000009.partial");
  const auto all = save_on_two_hosts(first.path(), second.path(), {1, 2, 3, 4, 5}, [](auto& c, int rank, int64_t step) {
    if (rank == 0 && step == 3) c.mark_good(2, "a test");
    if (rank == 0 && step == 5) c.mark_bad("another");  // those of steps 3 and 4
    return absl::OkStatus();
  });
  for (const absl::Status& s : all) EXPECT_TRUE(s.ok()) << s;
  for (const TempFolder* folder : {&first, &second}) {
    std::set<std::string> names;
    for (const auto& e : fs::directory_iterator(folder->path())) names.insert(e.path().filename());
    EXPECT_THAT(names, ElementsAre(".lock", "step-000000000002", "step-000000000005"));
    std::string why;
    EXPECT_EQ(verdict_on(*folder / "step-000000000002", &why), CheckpointVerdict::kGood);
    EXPECT_EQ(why, "a test");
  }
  const auto again =
      save_on_two_hosts(TempFolder().path(), second.path(), {1}, [](auto&, int, int64_t) { return absl::OkStatus(); });
  for (const absl::Status& s : again) {
    EXPECT_EQ(s.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(s.message()), HasSubstr("already holds checkpoints, up to step 5"));
  }
}

// What every host's disk says when it goes on: the step, or why not.
std::vector<std::string> resume_on_two_hosts(const std::string& first, const std::string& second) {
  std::vector<std::string> all(4);
  on_ranks(holder(layouts()[3]), [&](const Executor& executor, Communicator* communicator) -> absl::Status {
    const int rank = communicator->rank();
    auto c = Checkpointer::open({.folder = rank < 2 ? first : second, .resume = "auto"}, executor, communicator);
    if (!c.ok()) return c.status();
    auto from = (*c)->resume();
    std::string& said = all[static_cast<size_t>(rank)];
    if (!from.ok()) return said = std::string(from.status().message()), from.status();
    const int64_t step = from->has_value() ? (*from)->step : 0;
    said = cat(step, differences(executor, static_cast<uint64_t>(step)) == 0 ? "" : " with other states");
    return absl::OkStatus();
  }).IgnoreError();
  return all;
}

TEST(Checkpoint, OneThatAHostLacks_GivesWayToTheNewestThatAllHave) {
  const TempFolder first, second, other;
  save_on_two_hosts(first.path(), second.path(), {1, 2}, [](auto&, int, int64_t) { return absl::OkStatus(); });
  fs::rename(second / "step-000000000002", other / "aside");
  ::testing::internal::CaptureStderr();
  EXPECT_THAT(resume_on_two_hosts(first.path(), second.path()), Each("1"));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("step-000000000002/manifest.json"));
  fs::rename(other / "aside", second / "step-000000000002");
  fs::remove_all(first / "step-000000000002");
  ::testing::internal::CaptureStderr();
  EXPECT_THAT(resume_on_two_hosts(first.path(), second.path()), Each("1"));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("of rank 2 holds a checkpoint of step 2, which other ranks lack; the run goes on from step 1"));
  // A host that is new has none: nothing begins anew without a word.
  EXPECT_THAT(resume_on_two_hosts(TempFolder().path(), second.path()), Contains(HasSubstr("would begin anew")));
  EXPECT_THAT(resume_on_two_hosts(first.path(), TempFolder().path()), Contains(HasSubstr("manifest.json")));
}

TEST(Checkpoint, APartThatCannotBeWritten_IsToldByTheFirstRankAndEndsAllAlike) {
  const TempFolder first, second;
  ::testing::internal::CaptureStderr();
  const auto all = save_on_two_hosts(first.path(), second.path(), {1, 2}, [&](auto&, int rank, int64_t step) {
    // Where the rank's file should be.
    if (rank == 3 && step == 2) fs::create_directories(second / ".step-000000000002.partial/boxes-00003.safetensors");
    return absl::OkStatus();
  });
  const std::string said = ::testing::internal::GetCapturedStderr();
  const std::string why(all[3].message());
  EXPECT_THAT(why, HasSubstr("boxes-00003.safetensors"));
  for (const absl::Status& s : all) EXPECT_EQ(s.code(), all[3].code()) << s;
  EXPECT_THAT(said, AllOf(HasSubstr("the checkpoint of step 2 was not written: rank 3 failed: "), HasSubstr(why),
                          HasSubstr("the one of step 1 is kept")));
  for (const TempFolder* folder : {&first, &second}) EXPECT_THAT(list_checkpoints(folder->path()), ElementsAre(1));
}

// Runs of a program that trains: least squares.
class Resumed : public ::testing::TestWithParam<int> {
 protected:
  static constexpr int64_t kBatch = 12, kSteps = 8;
  void SetUp() override {
    std::vector<float> xt, rates(16, 0);
    for (int64_t k = 0; k < kSteps * kBatch * 4; ++k)
      xt.push_back(static_cast<float>(mix64(static_cast<uint64_t>(k)) % 2001) / 1000 - 1);
    ASSERT_TRUE(
        write_npz(folder_ / "data.npz", {{"xt", DType::kF32, {kSteps * kBatch, 4}, std::as_bytes(std::span(xt))}})
            .ok());
    for (size_t c = 0; c < 3; ++c) rates[c * 5] = -0.3f;
    auto writer = SafetensorsWriter::create(folder_ / "initial.safetensors", {{"rates", DType::kF32, {4, 4}}});
    ASSERT_TRUE((*writer)->write("rates", std::as_bytes(std::span(rates))).ok());
    ASSERT_TRUE((*writer)->finish().ok());
  }
  struct Recorder : MetricsSink {
    absl::Status write(const StepMetrics& m) override {
      losses.emplace_back(m.step, m.loss.value_or(-1));
      if (stop != nullptr && m.step == stop_after) *stop = true;
      return absl::OkStatus();
    }
    std::vector<std::pair<int64_t, double>> losses;
    std::atomic<bool>* stop = nullptr;
    int64_t stop_after = -1;
  };
  absl::Status train(int64_t steps, CheckpointOptions checkpoint, Recorder& recorder, int ranks = GetParam()) {
    auto loaded = LoadedProgram::load(least_squares(ranks, kBatch, 3));
    TrainOptions o;
    o.data.path = folder_ / "data.npz";
    o.data.shuffle = true;
    o.data.seed = 3;
    o.initial = std::make_shared<const SafetensorsFile>(*SafetensorsFile::open(folder_ / "initial.safetensors"));
    o.steps = steps;
    o.checkpoint = std::move(checkpoint);
    o.stop = recorder.stop;
    return train_local(*loaded, o, &recorder);
  }
  TempFolder folder_;
};

TEST_P(Resumed, LossesEqualTheUnbrokenRuns_BitForBit) {
  Recorder whole, before, after;
  ASSERT_TRUE(train(kSteps, {}, whole).ok());
  ASSERT_EQ(whole.losses.size(), static_cast<size_t>(kSteps));
  const std::string folder = folder_ / "checkpoints";
  ASSERT_TRUE(train(5, {.folder = folder, .every = 2}, before).ok());
  EXPECT_EQ(list_checkpoints(folder), (std::vector<int64_t>{2, 4, 5}));
  ASSERT_TRUE(train(kSteps, {.folder = folder, .resume = "auto"}, after).ok());
  ASSERT_EQ(after.losses.size(), 3u);
  for (const auto& [step, loss] : before.losses) EXPECT_EQ(loss, whole.losses[static_cast<size_t>(step)].second);
  for (const auto& [step, loss] : after.losses) EXPECT_EQ(loss, whole.losses[static_cast<size_t>(step)].second) << step;
  // From one in the middle, elsewhere.
  Recorder middle;
  ASSERT_TRUE(train(kSteps, {.resume = folder + "/step-000000000004"}, middle).ok());
  EXPECT_EQ(std::vector(whole.losses.begin() + 4, whole.losses.end()), middle.losses);
}

TEST_P(Resumed, UnderAnotherNumberOfRanks_GoesOn) {
  Recorder whole, before, after;
  ASSERT_TRUE(train(kSteps, {}, whole).ok());
  const std::string folder = folder_ / "checkpoints";
  ASSERT_TRUE(train(5, {.folder = folder}, before).ok());
  ASSERT_TRUE(train(kSteps, {.folder = folder, .resume = "auto"}, after, GetParam() == 4 ? 1 : 4).ok());
  ASSERT_EQ(after.losses.size(), 3u);
  for (const auto& [step, loss] : after.losses) EXPECT_NEAR(loss, whole.losses[static_cast<size_t>(step)].second, 1e-5);
}

TEST_P(Resumed, ToldToStop_SavesAndGoesOn) {
  Recorder whole, before, after;
  ASSERT_TRUE(train(kSteps, {}, whole).ok());
  std::atomic<bool> stop = false;
  before.stop = &stop;
  before.stop_after = 2;
  const std::string folder = folder_ / "checkpoints";
  const absl::Status stopped = train(kSteps, {.folder = folder}, before);
  EXPECT_EQ(stopped.code(), absl::StatusCode::kCancelled) << stopped;
  EXPECT_THAT(std::string(stopped.message()), HasSubstr("--resume"));
  const int64_t taken = static_cast<int64_t>(before.losses.size());
  EXPECT_LT(taken, kSteps);
  EXPECT_EQ(list_checkpoints(folder), (std::vector<int64_t>{taken}));
  ASSERT_TRUE(train(kSteps, {.folder = folder, .resume = "auto"}, after).ok());
  EXPECT_EQ(std::vector(whole.losses.begin() + taken, whole.losses.end()), after.losses);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Resumed, ::testing::Values(1, 2, 4));

}  // namespace
}  // namespace partita::runtime
