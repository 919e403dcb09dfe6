// A global batch that changes at steps: as if the run had been stopped there and resumed with another recipe.
#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include "base/cat.h"
#include "nlohmann/json.hpp"
#include "tests/support/command.h"
#include "tests/support/losses.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

class BatchRamp : public testing::Test {
 protected:
  void SetUp() override {
    std::string text;
    for (int k = 0; k < 4000; ++k) text += static_cast<char>(k * k % 61);
    out_.write("tokens.bin", text);
    partita("model gpt --layers 2 --hidden 32 --heads 4 --vocab 61 --seq 8 --with-weights --quiet -o " +
            (out_ / "model.onnx"));
  }

  static std::string partita(const std::string& arguments, int code = 0) {
    Outcome o = run_command(partita_program() + " " + arguments);
    EXPECT_EQ(o.code, code) << arguments << "\n" << o.text;
    return o.text;
  }
  // Arguments that name the model and a recipe with this global batch.
  std::string model(const std::string& global) {
    const std::string data = cat("{kind: tokens, dtype: u8, shuffle: true, path: ", out_ / "tokens.bin", "}");
    out_.write("train.yaml",
               cat("loss: {kind: output, output: loss}\noptimizer: {kind: adamw, lr: 0.01}\nschedule: {kind: linear, "
                   "warmup: 2, total: 9}\nevaluate: {every: 2, batches: 1, data: ",
                   data, "}\nbatch: {global: ", global, ", micro: 2}\ndata: ", data, "\n"));
    return cat(out_ / "model.onnx", " --train ", out_ / "train.yaml ");
  }
  std::string train(const std::string& global, const std::string& layout, int steps, const std::string& more = "") {
    return partita(cat("train ", model(global), layout, " --threads 1 --steps ", steps, " --checkpoint ",
                       out_ / "ckpt ", more, " --metrics ", out_ / "m.jsonl"));
  }
  std::vector<double> take_losses() {
    std::vector<double> losses = read_losses(out_ / "m.jsonl");
    for (const char* made : {"ckpt", "m.jsonl"}) std::filesystem::remove_all(out_ / made);
    return losses;
  }

  TempFolder out_;
};

constexpr const char* kRamp = "[[0, 4], [2, 8], [3, 16]]";

TEST_F(BatchRamp, IsRunsWithEachBatchInTurn) {
  for (const char* layout :
       {"--ranks 4 --like zero3 --pin tensor=2", "--ranks 4 --pin pipeline=2 --pin zero=2 --pin offload=optimizer"}) {
    SCOPED_TRACE(layout);
    train("4", layout, 2, "--quiet");
    train("8", layout, 3, "--quiet --resume");
    train("16", layout, 5, "--quiet --resume");
    const std::vector<double> expected = take_losses();
    ASSERT_EQ(expected.size(), 5U);
    EXPECT_EQ(train(kRamp, layout, 5).find("warning"), std::string::npos);
    EXPECT_EQ(take_losses(), expected);
    for (int stop : {1, 2})
      train(kRamp, layout, stop, stop == 1 ? "--quiet" : "--quiet --resume");  // within, at its end
    EXPECT_EQ(train(kRamp, layout, 5, "--resume").find("warning"), std::string::npos);
    EXPECT_EQ(take_losses(), expected);
  }
}

TEST_F(BatchRamp, IsProved_AndToldOf) {
  partita(cat("compile ", model(kRamp), "--ranks 2 --like zero2 --quiet -o ", out_ / "bundle"));
  const std::string proved =
      partita(cat("verify ", out_ / "bundle", " --model ", out_ / "model.onnx", " --train ", out_ / "train.yaml"));
  for (const char* told : {"the part for 4 samples a step:\nverified: 2 ranks", "the part for 8 samples a step:"})
    EXPECT_NE(proved.find(told), std::string::npos) << proved;
  const std::string run = partita(cat("run ", out_ / "bundle", " --threads 1 --steps 4"));
  EXPECT_NE(run.find("4 steps of 4 samples (32 tokens); 8 samples from step 2 on; 16 samples from step 3 on"),
            std::string::npos)
      << run;
  const std::string step = partita(cat("data ", out_ / "bundle", " --step 3 --steps 5"));
  EXPECT_NE(step.find("takes samples 16 to 31 of the stream"), std::string::npos) << step;
}

TEST_F(BatchRamp, IsRefused_WhereRanksDoNotDivideIt) {
  const std::string told = partita(cat("compile ", model("[[0, 4], [2, 6]]"), "--ranks 4 --quiet -o ", out_ / "no"), 2);
  EXPECT_NE(told.find("a global batch of 6"), std::string::npos) << told;
}

// Of a batch that shrinks the first steps need most.
TEST_F(BatchRamp, APlanHasRoomForEachNumberOfSamples) {
  out_.write("cluster.yaml", "devices_per_node: 2\ndevice: {like: cpu, memory: 1e12}\n");
  const auto bytes = [&](const std::string& global) {
    partita(cat("plan ", model(global), "--cluster ", out_ / "cluster.yaml",
                " --pin pipeline=2 --pin schedule=gpipe --quiet -o ", out_ / "p.json"));
    return nlohmann::json::parse(TempFolder::read(out_ / "p.json"))["predicted"]["program_bytes"].dump();
  };
  EXPECT_EQ(bytes("[[0, 16], [2, 8]]"), bytes("16"));
  EXPECT_NE(bytes("16"), bytes("8"));
}

}  // namespace
}  // namespace partita
