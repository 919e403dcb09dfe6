// Every optimizer and parameter groups under layouts that divide weights: proved, and run beside the serial graph.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/cat.h"
#include "tests/support/command.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

class Optimizers : public testing::Test {
 protected:
  void SetUp() override {
    std::string text;
    for (int k = 0; k < 4000; ++k) text += static_cast<char>(k * k % 61);
    out_.write("tokens.bin", text);
    // 61 words: padded where two ranks share them. The embedding is the head, too.
    partita(cat("model gpt --layers 2 --hidden 32 --heads 4 --vocab 61 --seq 8 --batch 4 --with-weights --quiet -o ",
                out_ / "model.onnx"));
  }

  static std::string partita(const std::string& arguments) {
    Outcome o = run_command(partita_program() + " " + arguments);
    EXPECT_EQ(o.code, 0) << arguments << "\n" << o.text;
    return o.text;
  }
  // Arguments that name the model and a recipe.
  std::string model(const std::string& recipe) {
    out_.write("train.yaml", cat("loss: {kind: output, output: loss}\nbatch: {global: 8}\ndata: {kind: tokens, dtype: ",
                                 "u8, path: ", out_ / "tokens.bin", "}\n", recipe));
    return cat(out_ / "model.onnx", " --train ", out_ / "train.yaml", " --quiet ");
  }

  TempFolder out_;
};

TEST_F(Optimizers, AreProvedAndRunAsTheSerialGraph) {
  // An epsilon that is not small: the first steps are not the gradient's sign, which rounding decides where it is zero.
  const char* kRecipes[] = {
      "optimizer: {kind: lion, lr: 0.001, weight_decay: 0.1, no_decay: ['*bias']}\n",
      "optimizer: {kind: rmsprop, lr: 0.001, eps: 0.01, momentum: 0.9, centered: true, weight_decay: 0.1}\n"
      "schedule: {kind: one_cycle, total: 8}\nclip_grad_norm: 1\n",
      "optimizer: {kind: adafactor, eps: 0.001, weight_decay: 0.1, groups: [{match: '*bias', lr: 0.1, eps2: 0.01}]}\n",
      "optimizer: {kind: adamw, lr: 0.001, eps: 0.001, groups: [{match: '*wte*', lr: 0.0001, betas: [0.8, "
      "0.9]}, {match: '*.h.0.*', weight_decay: 0.5}]}\nschedule: {kind: step, step_size: 2}\n"
      "evaluate: {every: 2, batches: 1, data: {kind: synthetic}}\n",
  };
  for (const char* recipe : kRecipes) {
    SCOPED_TRACE(recipe);
    partita(cat("compile ", model(recipe), "--ranks 4 --pin pipeline=2 --pin zero=2 --pin offload=optimizer -o ",
                out_ / "stages"));
    partita(cat("verify ", out_ / "stages"));
    partita(cat("compile ", model(recipe), "--ranks 4 --like zero3 --pin tensor=2 -o ", out_ / "bundle"));
    partita(cat("verify ", out_ / "bundle", " --numeric"));
    for (const char* made : {"stages", "bundle"}) std::filesystem::remove_all(out_ / made);
  }
}

}  // namespace
}  // namespace partita
