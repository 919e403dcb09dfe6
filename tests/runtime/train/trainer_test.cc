#include "runtime/train/trainer.h"
#include "nlohmann/json.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>

#include "base/atomic_file.h"
#include "base/checksum.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/files/npz.h"
#include "runtime/files/safetensors.h"
#include "runtime/program/bundle_files.h"
#include "runtime/program/bundle_names.h"
#include "runtime/program/program_image.h"
#include "runtime/run_flags.h"
#include "runtime/train/trainer_notes.h"
#include "tests/runtime/support/program_samples.h"
#include "tests/support/temp_folder.h"

namespace partita::runtime {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kBatch = 12, kMicroBatches = 3, kSteps = 4;
constexpr double kRate = 0.5;

// kSteps batches of rows x0 x1 x2 t.
std::vector<float> samples() {
  std::mt19937 random(7);
  std::vector<float> xt;
  for (int64_t i = 0; i < kSteps * kBatch * 4; ++i) xt.push_back(static_cast<float>(random() % 2001) / 1000 - 1);
  return xt;
}

struct Descent {
  std::vector<double> losses, w = {-1, -1, -1}, first_gradient = {0, 0, 0, 0};
};

Descent reference() {
  const std::vector<float> xt = samples();
  Descent r;
  for (int64_t s = 0; s < kSteps; ++s) {
    double loss = 0, gradient[4] = {};
    for (int64_t i = s * kBatch; i < (s + 1) * kBatch; ++i) {
      const float* row = xt.data() + i * 4;
      const double e = row[0] * r.w[0] + row[1] * r.w[1] + row[2] * r.w[2] - row[3];
      loss += e * e / kBatch;
      for (int c = 0; c < 4; ++c) gradient[c] += e * row[c] / kBatch;
    }
    if (s == 0) r.first_gradient.assign(gradient, gradient + 4);
    for (size_t c = 0; c < 3; ++c) r.w[c] -= kRate * gradient[c];
    r.losses.push_back(loss);
  }
  return r;
}

// A folder with data.npz and initial.safetensors.
class Workplace {
 public:
  Workplace() {
    const std::vector<float> xt = samples();
    EXPECT_TRUE(write_npz(data(), {{"xt", DType::kF32, {kSteps * kBatch, 4}, std::as_bytes(std::span(xt))}}).ok());
    std::vector<float> rates(16, 0);
    for (size_t c = 0; c < 3; ++c) rates[c * 5] = static_cast<float>(-kRate);
    auto writer = SafetensorsWriter::create(folder / "initial.safetensors", {{"rates", DType::kF32, {4, 4}}});
    EXPECT_TRUE((*writer)->write("rates", std::as_bytes(std::span(rates))).ok());
    EXPECT_TRUE((*writer)->finish().ok());
  }
  std::string data() const { return folder / "data.npz"; }

  TrainOptions options() const {
    TrainOptions o;
    o.data.path = data();
    o.initial = std::make_shared<const SafetensorsFile>(*SafetensorsFile::open(folder / "initial.safetensors"));
    o.save = folder / "trained.safetensors";
    o.save_gradients = folder / "gradients.safetensors";
    return o;
  }

  TempFolder folder;
};

class Recorder : public MetricsSink {
 public:
  absl::Status write(const StepMetrics& metrics) override {
    losses.push_back(metrics.loss.value_or(-1));
    return absl::OkStatus();
  }
  std::vector<double> losses;
};

std::vector<float> tensor_of(const std::string& path, const std::string& name) {
  auto file = SafetensorsFile::open(path);
  EXPECT_TRUE(file.ok()) << file.status();
  std::vector<float> values;
  if (!file.ok() || file->find(name) == nullptr) return values;
  const std::span<const std::byte> bytes = file->data(*file->find(name));
  values.resize(bytes.size() / 4);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

void expect_trained(const Workplace& place) {
  const Descent expected = reference();
  const std::vector<float> v = tensor_of(place.folder / "trained.safetensors", "v"),
                           g = tensor_of(place.folder / "gradients.safetensors", "v");
  ASSERT_EQ(v.size(), 4u);
  ASSERT_EQ(g.size(), 4u);
  for (size_t c = 0; c < 3; ++c) EXPECT_NEAR(v[c], expected.w[c], 1e-5);
  for (size_t c = 0; c < 4; ++c) EXPECT_NEAR(g[c], expected.first_gradient[c], 1e-5);
  EXPECT_EQ(v[3], -1);
}

class TrainLocal : public ::testing::TestWithParam<int> {};

TEST_P(TrainLocal, Descends_AndSavesWholeTensors) {
  const Workplace place;
  auto loaded = LoadedProgram::load(least_squares(GetParam(), kBatch, kMicroBatches));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  Recorder recorder;
  const absl::Status status = train_local(*loaded, place.options(), &recorder);
  ASSERT_TRUE(status.ok()) << status;
  const Descent expected = reference();
  ASSERT_EQ(recorder.losses.size(), expected.losses.size());
  for (size_t i = 0; i < expected.losses.size(); ++i) EXPECT_NEAR(recorder.losses[i], expected.losses[i], 1e-5);
  expect_trained(place);
}

INSTANTIATE_TEST_SUITE_P(Ranks, TrainLocal, ::testing::Values(1, 2, 4));

TEST(TrainLocal, TooFewSamples_SaysHowMany) {
  const Workplace place;
  auto loaded = LoadedProgram::load(least_squares(2, kBatch, kMicroBatches));
  TrainOptions options = place.options();
  options.steps = kSteps + 1;
  const absl::Status status = train_local(*loaded, options, nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("48"));
}

TEST(TrainLocal, MissingFirstValues_NameTheState) {
  const Workplace place;
  auto loaded = LoadedProgram::load(least_squares(2, kBatch, kMicroBatches));
  TrainOptions options = place.options();
  options.initial = nullptr;
  const absl::Status status = train_local(*loaded, options, nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("'rates'"));
}

// The executable of a rank: the built runner in a bundle.
class Runner : public ::testing::Test {
 protected:
  void SetUp() override {
    runner_ = std::string(PARTITA_BUILD) + "/runtime/partita_runner";
    if (!std::filesystem::exists(runner_)) GTEST_SKIP() << "partita_runner is not built";
  }
  std::string make_rank(const Workplace& place, int64_t ranks) {
    place.folder.write(kImageName, serialize_program(least_squares(ranks, kBatch, kMicroBatches)));
    std::filesystem::copy_file(runner_, place.folder / kRankName, std::filesystem::copy_options::overwrite_existing);
    const nlohmann::json manifest = {
        {"version", kManifestVersion}, {"ranks", ranks}, {"data", nlohmann::json::object()}};
    EXPECT_TRUE(seal_bundle(place.folder.path(), manifest).ok());
    return place.folder / kRankName;
  }
  static int run(const std::string& command) {
    const int status = std::system(("env -u OMPI_COMM_WORLD_RANK -u RANK " + command).c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  std::string runner_;
};

TEST_F(Runner, OneRank_Trains) {
  const Workplace place;
  const std::string rank = make_rank(place, 1);
  EXPECT_EQ(run(rank + " --quiet --data " + place.data() + " --save " + (place.folder / "trained.safetensors") +
                " --save-gradients " + (place.folder / "gradients.safetensors")),
            0);
  expect_trained(place);
}

TEST_F(Runner, TwoProcesses_TrainOverTcp) {
  const Workplace place;
  const std::string rank = make_rank(place, 2), flags = " --quiet --data " + place.data() + " --save " +
                                                        (place.folder / "trained.safetensors") + " --save-gradients " +
                                                        (place.folder / "gradients.safetensors");
  const std::string port = std::to_string(20000 + ::getpid() % 20000),
                    environment = "MASTER_ADDR=127.0.0.1 MASTER_PORT=" + port + " WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 ";
  EXPECT_EQ(run("sh -c '" + environment + "RANK=1 LOCAL_RANK=1 " + rank + flags + " & " + environment +
                "RANK=0 LOCAL_RANK=0 " + rank + flags + "; a=$?; wait $! && exit $a'"),
            0);
  expect_trained(place);
}

TEST_F(Runner, BadInput_EndsWithTwo) {
  const Workplace place;
  const TempFolder out;
  const std::string rank = make_rank(place, 1), quiet = " 2>" + (out / "errors");
  EXPECT_EQ(run(rank + " --quiet --data " + (place.folder / "absent.npz") + quiet), 2);
  EXPECT_THAT(TempFolder::read(out / "errors"), HasSubstr("absent.npz"));
  EXPECT_EQ(run(runner_ + " --quiet --data " + place.data() + quiet), 2);
  EXPECT_THAT(TempFolder::read(out / "errors"), HasSubstr("manifest.json"));
  EXPECT_EQ(run(make_rank(place, 2) + " --quiet --data " + place.data() + quiet), 2);
  EXPECT_THAT(TempFolder::read(out / "errors"), HasSubstr("this bundle is for 2 ranks and 1 started"));
}

TEST(DataFlag, FileTakesThePlaceOfSyntheticSamples) {
  DataConfig config{.kind = DataKind::kSynthetic};
  ASSERT_TRUE(take_data_flag("absent.npz", config).ok());
  EXPECT_EQ(config.kind, DataKind::kNpz);
  config = {.kind = DataKind::kNpy};
  ASSERT_TRUE(take_data_flag("absent.npz", config).ok());
  EXPECT_EQ(config.kind, DataKind::kNpy);
}

TEST(Changes, OtherNumberOfSamples_IsWarnedOf) {
  const auto warned = [](int64_t before, int64_t now) {
    testing::internal::CaptureStderr();
    warn_of_changes({.epoch_samples = before}, {.epoch_samples = now}, false);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(warned(40, 50), HasSubstr("the data hold another number of samples (50, not 40)"));
  EXPECT_EQ(warned(40, 40), "");
  EXPECT_EQ(warned(0, 50), "");  // an older checkpoint, or shards of which more were to come
}

TEST(Changes, AnotherRecipe_IsWarnedOf) {
  using Keys = std::map<std::string, std::string>;
  const auto warned = [](const Keys& before, const Keys& now) {
    testing::internal::CaptureStderr();
    warn_of_changes({.recipe = before}, {.recipe = now}, false);
    return testing::internal::GetCapturedStderr();
  };
  const Keys before = {{"ema", "{decay: 0.9}"}, {"loss", "l"}, {"optimizer", "{kind: adam}"}};
  EXPECT_THAT(
      warned(before, {{"loss", "l"}, {"optimizer", "{kind: lamb}"}}),
      HasSubstr("the recipe is another (ema none, not {decay: 0.9}; optimizer {kind: lamb}, not {kind: adam}) than"));
  EXPECT_EQ(warned(before, before), "");
  EXPECT_EQ(warned({}, before), "");  // an older checkpoint
}

}  // namespace
}  // namespace partita::runtime
