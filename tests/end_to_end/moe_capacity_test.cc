// Experts' capacity by the recipe: a model that was exported for four samples, with groups of two, is the one that was
// exported for two, and its ranks and micro-batches need nothing of each other's samples.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "nlohmann/json.hpp"
#include "tests/support/command.h"
#include "tests/support/losses.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tensor_difference.h"

namespace partita {
namespace {

// 16 positions of 2 choices over 4 experts: the capacity that `partita model` gives n samples is 8 n.
class ExpertCapacity : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* batch : {"4", "2", "batch"}) {
      std::string flag = batch == std::string("batch") ? "" : std::string(" --batch ") + batch;
      Outcome made =
          run_command(partita_program() +
                      " model moe --layers 2 --hidden 16 --heads 2 --vocab 61 --seq 16 --experts 4 --top-k 2 "
                      "--quiet --with-weights -o " +
                      model(batch) + flag);
      ASSERT_EQ(made.code, 0) << made.text;
    }
    std::string tokens;
    for (int k = 0; k < 4000; ++k) tokens += static_cast<char>(k * k % 61);
    out_.write("tokens.bin", tokens);
  }
  std::string model(const std::string& batch) { return out_ / ("model" + batch + ".onnx"); }
  std::string recipe(const std::string& semantics) {
    return out_.write("train.yaml",
                      "loss: {kind: output, output: loss}\noptimizer: {kind: adamw, lr: 0.001, eps: 0.001}\n"
                      "batch: {global: 8}\ndata: {kind: tokens, dtype: u8}\n" +
                          (semantics.empty() ? "" : "semantics: {moe: " + semantics + "}\n"));
  }
  Outcome compile(const std::string& batch, const std::string& semantics, const std::string& flags = {}) {
    return run_command(partita_program() + " compile " + model(batch) + " --train " + recipe(semantics) + " " + flags +
                       " -o " + (out_ / "bundle"));
  }
  std::vector<double> losses(const std::string& batch, const std::string& semantics, const std::string& flags = {}) {
    Outcome run = run_command(partita_program() + " train " + model(batch) + " --train " + recipe(semantics) +
                              " --data " + (out_ / "tokens.bin") + " --quiet --threads 1 --steps 3 --metrics " +
                              (out_ / "m.jsonl") + " --save " + (out_ / "trained") + " " + flags);
    EXPECT_EQ(run.code, 0) << run.text;
    std::vector<double> found = read_losses(out_ / "m.jsonl");
    std::filesystem::remove(out_ / "m.jsonl");
    return found;
  }
  TempFolder out_;
};

TEST_F(ExpertCapacity, OfGroups_IsThatOfAnExportForAGroup) {
  std::vector<double> two = losses("2", "");
  ASSERT_EQ(two.size(), 3u);
  std::filesystem::rename(out_ / "trained", out_ / "two");
  for (const char* batch : {"4", "batch"}) {
    for (const char* semantics : {"{capacity: 16, group: 2}", "{capacity_factor: 1, group: 2}"}) {
      EXPECT_EQ(losses(batch, semantics), two) << batch << semantics;  // to the bit
      EXPECT_EQ(tensor_difference(out_ / "trained", out_ / "two"), 0) << batch << semantics;
    }
  }
  EXPECT_NE(losses("4", ""), two);
  EXPECT_NE(losses("4", "{capacity: 16}"), two);
  EXPECT_NE(losses("4", "{capacity: 4, group: 2}"), two);
  EXPECT_EQ(losses("2", "{capacity: 16}"), two);
  EXPECT_EQ(losses("2", "{capacity_factor: 0.95}"), losses("2", "{capacity: 16}"));
}

TEST_F(ExpertCapacity, OfAnyNumber_HasSlotsForIt) {
  for (const char* capacity : {"1", "5", "16", "40"}) {
    Outcome compiled = compile("4", std::string("{capacity: ") + capacity + ", group: 2}");
    ASSERT_EQ(compiled.code, 0) << compiled.text;
    EXPECT_NE(compiled.text.find("experts' capacity is that of 2 samples of the step's 8"), std::string::npos)
        << compiled.text;
    std::string serial = TempFolder::read(out_ / "bundle/verify/serial.ir");
    EXPECT_NE(serial.find(std::string("[4,") + capacity + ",16]"), std::string::npos) << capacity;
    EXPECT_EQ(serial.find("f32[64,4]"), std::string::npos) << "tokens of four samples";
  }
}

TEST_F(ExpertCapacity, OfGroups_RanksAndMicroBatchesAreProved) {
  for (const char* flags :
       {"--ranks 2 --like ddp", "--ranks 4 --like zero3", "--ranks 4 --pin pipeline=2 --pin data=2",
        "--ranks 2 --pin pipeline=2", "--ranks 4 --pin expert=2 --pin tensor=2", "--ranks 8 --like ddp"}) {
    Outcome compiled = compile("4", "{capacity: 12, group: 2}", std::string("--keep-gradients ") + flags);
    ASSERT_EQ(compiled.code, 0) << flags << ": " << compiled.text;
    Outcome proved = run_command(partita_program() + " verify " + (out_ / "bundle") + " --numeric --threads 1");
    EXPECT_EQ(proved.code, 0) << flags << ": " << proved.text;
  }
}

// Four ranks with a group each exchange gradients and the loss; with one group for all, they wait for its routing too.
TEST_F(ExpertCapacity, OfGroups_NeedsNoExchangeOfTokens) {
  auto forward_collectives = [&](const char* semantics) {
    Outcome compiled = compile("batch", semantics, "--ranks 4 --like ddp");
    EXPECT_EQ(compiled.code, 0) << compiled.text;
    std::istringstream lines(TempFolder::read(out_ / "bundle/verify/rank.ir"));
    int found = 0;
    for (std::string line; std::getline(lines, line);) {
      bool collective =
          line.find("all_reduce(") != std::string::npos || line.find("all_gather(") != std::string::npos ||
          line.find("reduce_scatter(") != std::string::npos || line.find("all_to_all(") != std::string::npos;
      found += collective && line.find("@forward") != std::string::npos;
    }
    return found;
  };
  EXPECT_EQ(forward_collectives("{capacity: 12, group: 2}"), 0);
  EXPECT_GT(forward_collectives("{capacity: 48}"), 0);
}

// Ranks along the expert axis share a group, each with its part of the samples: plans say what compile does.
TEST_F(ExpertCapacity, OfGroups_IsPlannedAsItIsCompiled) {
  const std::string cluster = out_.write("cluster.yaml", "devices_per_node: 4\ndevice: {like: cpu}\n");
  const std::string semantics = "{capacity: 16, group: 2}", pins = "--pin data=2 --pin expert=2 --pin micro_batch=";
  for (const char* micro : {"1", "2"}) {
    SCOPED_TRACE(micro);
    const bool fits = micro == std::string("1");
    Outcome planned = run_command(partita_program() + " plan " + model("batch") + " --train " + recipe(semantics) +
                                  " --cluster " + cluster + " " + pins + micro + " -o " + (out_ / "plan.json"));
    EXPECT_EQ(planned.code, fits ? 0 : 2) << planned.text;
    EXPECT_EQ(compile("batch", semantics, "--ranks 4 " + pins + micro).code, fits ? 0 : 2);
  }
  EXPECT_EQ(compile("batch", semantics, "--plan " + (out_ / "plan.json")).code, 0);
}

TEST_F(ExpertCapacity, WhereTheModelHasNone_IsRefused) {
  Outcome made = run_command(partita_program() +
                             " model gpt --layers 1 --hidden 16 --heads 2 --vocab 64 --seq 16 --batch 4 --quiet "
                             "--with-weights -o " +
                             model("gpt"));
  ASSERT_EQ(made.code, 0) << made.text;
  Outcome dense = compile("gpt", "{capacity: 8}");
  EXPECT_EQ(dense.code, 2);
  EXPECT_NE(
      dense.text.find("semantics.moe: the model has no experts with a capacity: expected places counted by CumSum"),
      std::string::npos)
      << dense.text;
  EXPECT_EQ(compile("gpt", "dropless").code, 0);
  Outcome dropping = compile("2", "dropless");
  EXPECT_EQ(dropping.code, 2);
  EXPECT_NE(dropping.text.find("gives an expert 16 places, so that tokens beyond them are dropped"), std::string::npos)
      << dropping.text;
  Outcome large = compile("2", "{capacity: 8, group: 4}");
  EXPECT_EQ(large.code, 2);
  EXPECT_NE(large.text.find("semantics.moe: group: 4 samples share one capacity, and the graph takes 2 at a time"),
            std::string::npos)
      << large.text;
}

}  // namespace
}  // namespace partita
