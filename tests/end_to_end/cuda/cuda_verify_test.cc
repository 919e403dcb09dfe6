// Programs for GPUs are proved, as those for processors are: where values have their channels last in memory, and where
// products add their bias.
#include <gtest/gtest.h>

#include <string>

#include "base/cat.h"
#include "frontend/generate/graph_writer.h"
#include "tests/support/command.h"
#include "tests/support/temp_folder.h"
#include "tools/machine/cuda_toolkit.h"

namespace partita {
namespace {

class CudaVerify : public ::testing::Test {
 protected:
  void SetUp() override {
    if (auto found = find_assembler(); !found.ok()) GTEST_SKIP() << found.status().message();
  }
  void expect_proved(const std::string& recipe, const std::string& flags) {
    SCOPED_TRACE(flags);
    out_.write("train.yaml", recipe);
    const std::string bundle = out_ / "bundle";
    Outcome o = run_command(cat(partita_program(), " compile ", model_, " --train ", out_ / "train.yaml",
                                " --target cuda:sm_90 --quiet ", flags, " -o ", bundle));
    ASSERT_EQ(o.code, 0) << o.text;
    o = run_command(cat(partita_program(), " verify ", bundle));
    EXPECT_EQ(o.code, 0) << o.text;
  }

  TempFolder out_;
  const std::string model_ = out_ / "model.onnx";
};

// Images come with their channels first, and the loss meets both.
TEST_F(CudaVerify, LossesOfImages) {
  GraphWriter g("images");
  auto convolution = [&](const std::string& x, const std::string& name, int64_t in, int64_t out) {
    return g.add_node("Conv", {x, g.weight(name + ".weight", {out, in, 3, 3}), g.weight(name + ".bias", {out})},
                      {{"pads", std::vector<int64_t>{1, 1, 1, 1}}});
  };
  std::string x = g.input("x", Element::kFloat, {kBatchSymbol, 3, 16, 16});
  x = convolution(g.add_node("Relu", {convolution(x, "up", 3, 8)}), "down", 8, 2);
  g.output(x, {kBatchSymbol, 2, 16, 16});
  ASSERT_TRUE(g.status().ok()) << g.status();
  ASSERT_TRUE(write_generated(g, model_, 0).ok());
  const std::string recipe = cat("loss: {kind: mse, output: ", x, ", target: target}\n",
                                 "optimizer: {kind: sgd, lr: 0.1}\nbatch: {global: 32}\n");
  for (const char* micro : {"1", "32"}) {
    expect_proved(recipe, cat("--precision bf16 --pin micro_batch=", micro));
    expect_proved(recipe, cat("--pin micro_batch=", micro));
  }
}

TEST_F(CudaVerify, BiasesThatAreComputedAgain) {
  ASSERT_EQ(run_command(cat(partita_program(), " model gpt --layers 2 --hidden 32 --heads 2 --vocab 64 --seq 16 ",
                            "--with-weights --quiet -o ", model_))
                .code,
            0);
  for (const char* precision : {"fp32", "bf16"})
    expect_proved("optimizer: {kind: sgd, lr: 0.1}\nbatch: {global: 4}\n",
                  cat("--precision ", precision, " --pin recompute=selective"));
}

// An evaluation's scores are written once, by the end of its step.
TEST_F(CudaVerify, BiasesOfWhatEvaluationWrites) {
  ASSERT_EQ(run_command(cat(partita_program(), " model mlp --layers 16,32,8 --with-weights --quiet -o ", model_)).code,
            0);
  expect_proved(
      "loss: {kind: cross_entropy, output: logits, target: target}\nbatch: {global: 4}\n"
      "evaluate: {every: 1, batches: 1, data: {kind: synthetic, vocab: 8}}\n",
      "--pin pipeline=2 --pin micro_batch=4");
}

}  // namespace
}  // namespace partita
