// Evaluation beside training, through the command line.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>

#include "nlohmann/json.hpp"
#include "runtime/checkpoint/checkpoint_manifest.h"
#include "runtime/files/npz.h"
#include "tests/support/command.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

namespace fs = std::filesystem;
using runtime::NpzFile;

struct Line {
  double loss = NAN, evaluation = NAN;
};
std::map<int64_t, Line> metrics(const std::string& path) {
  std::map<int64_t, Line> out;
  std::ifstream lines(path);
  for (std::string line; std::getline(lines, line);) {
    nlohmann::json j = nlohmann::json::parse(line);
    Line& l = out[j["step"].get<int64_t>()];
    l.loss = j["loss"].get<double>();
    if (j.contains("evaluation_loss")) l.evaluation = j["evaluation_loss"].get<double>();
  }
  return out;
}

class Evaluation : public testing::Test {
 protected:
  // The samples [first, first + count) of a model's data, as a file of their own.
  std::string part(const std::string& model, int64_t first, int64_t count) {
    auto file = NpzFile::open(folder(model) + "/data.npz");
    EXPECT_TRUE(file.ok()) << file.status();
    std::vector<runtime::NamedArray> entries;
    std::vector<runtime::NpyArray> arrays;
    for (const std::string& name : file->names()) arrays.push_back(*file->read(name));
    for (size_t k = 0; k < arrays.size(); ++k) {
      std::vector<int64_t> shape = arrays[k].shape;
      const int64_t sample = static_cast<int64_t>(arrays[k].bytes.size()) / shape[0];
      shape[0] = count;
      const std::vector<std::string> names = file->names();
      entries.push_back(
          {names[k], arrays[k].dtype, shape,
           arrays[k].bytes.subspan(static_cast<size_t>(first * sample), static_cast<size_t>(count * sample))});
    }
    const std::string path = out_ / (model + std::to_string(first) + ".npz");
    EXPECT_TRUE(runtime::write_npz(path, entries).ok());
    return path;
  }
  std::string folder(const std::string& model) { return std::string(PARTITA_MODELS) + "/" + model; }
  std::map<int64_t, Line> train(const std::string& model, const std::string& evaluate, int steps,
                                const std::string& flags) {
    const std::string recipe =
        out_.write("train.yaml", TempFolder::read(folder(model) + "/train.yaml") + "\nevaluate: " + evaluate + "\n");
    fs::remove(out_ / "m.jsonl");
    Outcome o = run_command(partita_program() + " train " + folder(model) + "/model.onnx --train " + recipe +
                            " --data " + folder(model) + "/data.npz --quiet --threads 1 --steps " +
                            std::to_string(steps) + " --metrics " + (out_ / "m.jsonl") + " " + flags);
    EXPECT_EQ(o.code, 0) << o.text;
    text_ = o.text;
    return metrics(out_ / "m.jsonl");
  }
  bool missing(const std::string& model) { return !fs::exists(folder(model)); }
  TempFolder out_;
  std::string text_;
};

// Without dropout and running statistics the loss of a batch that comes next is the training loss of the next step.
TEST_F(Evaluation, OfTheNextBatch_IsTheNextTrainingLoss) {
  if (missing("mlp")) GTEST_SKIP() << "no exported models at " << PARTITA_MODELS;
  for (const char* flags : {"", "--ranks 2 --like ddp", "--ranks 4", "--ranks 4 --like zero3"}) {
    auto lines = train("mlp", "{every: 3, data: {path: " + part("mlp", 3 * 32, 32) + "}}", 5, flags);
    ASSERT_EQ(lines.size(), 5u) << flags;
    EXPECT_TRUE(std::isnan(lines[0].evaluation));
    EXPECT_NEAR(lines[2].evaluation, lines[3].loss, 1e-6 * lines[3].loss) << flags;
  }
  // Two slices of the graph's batch in a step.
  auto lines = train("llama", "{every: 2, data: {path: " + part("llama", 2 * 4, 4) + "}}", 3, "");
  EXPECT_NEAR(lines[1].evaluation, lines[2].loss, 1e-6 * lines[2].loss);
}

// Batch norm goes by the running statistics: every sample alone, so batches do not matter and training does.
TEST_F(Evaluation, UsesRunningStatistics_AndLeavesTrainingAlone) {
  if (missing("resnet")) GTEST_SKIP() << "no exported models at " << PARTITA_MODELS;
  auto plain = train("resnet", "{every: 100, data: {path: " + part("resnet", 0, 16) + "}}", 5, "");
  auto often = train("resnet", "{every: 1, data: {path: " + part("resnet", 0, 16) + "}}", 5, "");
  auto ranks = train("resnet", "{every: 1, data: {path: " + part("resnet", 0, 16) + "}}", 5, "--ranks 2");
  for (int64_t s = 0; s < 5; ++s) {
    EXPECT_EQ(plain[s].loss, often[s].loss) << s;
    EXPECT_NEAR(ranks[s].evaluation, often[s].evaluation, 1e-4) << s;
    EXPECT_GT(std::abs(often[s].evaluation - often[s].loss), 1e-4) << s;
  }
}

// Statistics of four samples each, by micro-batches, ranks or both: the same training. Stages own the running averages
// of their own norms, also for evaluation.
TEST_F(Evaluation, ReplicaStatistics_AreTheSameOnRanksMicroBatchesAndStages) {
  if (missing("resnet")) GTEST_SKIP() << "no exported models at " << PARTITA_MODELS;
  const std::string evaluate =
      "{every: 2, data: {path: " + part("resnet", 0, 16) + "}}\nsemantics: {batch_norm: replica}";
  auto alone = train("resnet", evaluate, 4, "--pin micro_batch=4");
  EXPECT_NE(alone[0].loss, train("resnet", evaluate, 1, "")[0].loss);
  for (const char* flags :
       {"--ranks 4 --like ddp", "--ranks 2 --pin micro_batch=4", "--ranks 2 --pin pipeline=2 --pin micro_batch=4",
        "--ranks 2 --pin pipeline=2 --pin schedule=interleaved --pin micro_batch=4",
        "--ranks 4 --pin pipeline=2 --pin zero=1 --pin micro_batch=4"}) {
    auto lines = train("resnet", evaluate, 4, flags);
    ASSERT_EQ(lines.size(), 4u) << flags;
    for (int64_t s = 0; s < 4; ++s) {
      EXPECT_NEAR(lines[s].loss, alone[s].loss, 1e-4) << flags;
      if (s % 2 == 1) {
        EXPECT_NEAR(lines[s].evaluation, alone[s].evaluation, 1e-4) << flags;
      }
    }
  }
}

TEST_F(Evaluation, StopsEarly_AndKeepsTheBest) {
  if (missing("mlp")) GTEST_SKIP() << "no exported models at " << PARTITA_MODELS;
  const std::string folder = out_ / "checkpoints";
  // No gain is ever enough: after the first evaluation, two more.
  auto lines = train("mlp", "{every: 2, data: {path: " + part("mlp", 0, 64) + "}}", 10,
                     "--patience 2 --min-gain 100 --keep 1 --keep-best 1 --checkpoint " + folder);
  EXPECT_EQ(lines.size(), 6u);
  EXPECT_NE(text_.find("early stop"), std::string::npos) << text_;
  EXPECT_EQ(runtime::list_checkpoints(folder).back(), 6);
  lines = train("mlp", "{every: 2, data: {path: " + part("mlp", 0, 64) + "}}", 10,
                "--patience 2 --min-gain 100 --checkpoint " + folder + " --resume");
  EXPECT_TRUE(lines.empty());
  EXPECT_EQ(runtime::list_checkpoints(folder).back(), 6);
  auto dev = train("mlp", "{every: 2, data: {path: " + part("mlp", 0, 64) + "}}", 10, "--fast-dev-run");
  EXPECT_EQ(dev.size(), 1u);
  EXPECT_FALSE(std::isnan(dev[0].evaluation));
}

// A run that was told to stop within an evaluation leaves a checkpoint of that step without one.
TEST_F(Evaluation, ThatAStoppedRunLeftOut_IsMadeUpFor) {
  if (missing("mlp")) GTEST_SKIP() << "no exported models at " << PARTITA_MODELS;
  const std::string data = "data: {path: " + part("mlp", 0, 64) + "}}", folder = out_ / "checkpoints";
  auto whole = train("mlp", "{every: 2, " + data, 4, "");
  for (const char* ranks : {"", " --ranks 2 --like ddp"}) {
    fs::remove_all(folder);
    train("mlp", "{every: 100, " + data, 4, "--every 2 --checkpoint " + folder + ranks);
    fs::remove_all(folder + "/" + runtime::checkpoint_name(4));
    auto lines = train("mlp", "{every: 2, " + data, 4, "--resume --checkpoint " + folder + ranks);
    ASSERT_EQ(lines.size(), 3u) << ranks;  // of steps 2 to 4, the first without its training
    for (const auto& [step, line] : lines) {
      EXPECT_NEAR(line.loss, whole[step].loss, 1e-5) << step << ranks;
      if (step == 2) continue;
      EXPECT_NEAR(line.evaluation, whole[step].evaluation, 1e-5) << step << ranks;
    }
  }
}

TEST_F(Evaluation, OfMoreBatchesThanThereAreIsRefused) {
  if (missing("mlp")) GTEST_SKIP() << "no exported models at " << PARTITA_MODELS;
  const std::string data = part("mlp", 0, 70);
  out_.write("train.yaml", TempFolder::read(folder("mlp") + "/train.yaml") +
                               "\nevaluate: {batches: 3, data: {path: " + data + "}}\n");
  const Outcome o = run_partita("train " + folder("mlp") + "/model.onnx --train " + (out_ / "train.yaml") + " --data " +
                                data + " --quiet --steps 1");
  EXPECT_EQ(o.code, 2) << o.text;
  EXPECT_NE(
      o.text.find("evaluate.batches: 3 of 32 samples each are more than the 70 samples of evaluate.data hold; say "
                  "at most 2"),
      std::string::npos)
      << o.text;
}

TEST_F(Evaluation, FindsALearningRate) {
  if (missing("mlp")) GTEST_SKIP() << "no exported models at " << PARTITA_MODELS;
  Outcome o = run_command(partita_program() + " train " + folder("mlp") + "/model.onnx --train " + folder("mlp") +
                          "/train.yaml --shuffle --data " + folder("mlp") + "/data.npz --quiet --find-lr 2 --steps 60");
  EXPECT_EQ(o.code, 0) << o.text;
  EXPECT_NE(o.text.find("the loss falls fastest at"), std::string::npos) << o.text;
}

}  // namespace
}  // namespace partita
