// Every optimizer and parameter groups under layouts that divide weights: proved, and run beside the serial graph. The
// moving average of weights, evaluated and exported.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <map>

#include "base/cat.h"
#include "nlohmann/json.hpp"
#include "runtime/files/safetensors.h"
#include "tests/support/command.h"
#include "tests/support/losses.h"
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
      "optimizer: {kind: muon, lr: 0.02, adamw: {lr: 0.001, eps: 0.001, match: '*wte*'}, groups: [{match: '*.h.0.*', "
      "lr: "
      "0.01, adamw: {lr: 0.002}}]}\n",
      "optimizer: {kind: adamw_8bit, lr: 0.001, eps: 0.001, weight_decay: 0.1, no_decay: '*bias'}\n",
      "optimizer: {kind: adamw, lr: 0.001, eps: 0.001, groups: [{match: '*wte*', lr: 0.0001, betas: [0.8, "
      "0.9]}, {match: '*.h.0.*', weight_decay: 0.5}]}\nema: {decay: 0.5}\nschedule: {kind: step, step_size: 2}\n"
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

// 18 blocks of 256 elements in 24 rows, and 37 and a half in 200: no row begins where a block does.
TEST_F(Optimizers, BlocksOfCodesThatRowsCutAreProved) {
  out_.write("mlp.yaml", "loss: {kind: mse, target: target}\noptimizer: {kind: adamw_8bit}\n");
  for (const char* layers : {"192,24,4", "48,200,4"}) {
    partita(cat("model mlp --layers ", layers, " --batch 4 --with-weights --quiet -o ", out_ / "mlp.onnx"));
    partita(cat("compile ", out_ / "mlp.onnx", " --train ", out_ / "mlp.yaml", " --quiet --ranks 4 --pin tensor=2 ",
                "--pin zero=2 -o ", out_ / layers));
    partita(cat("verify ", out_ / layers));
  }
  // 75 and a half in 302 rows, which two ranks divide along their columns.
  partita(cat("model mlp --layers 64,302,4 --batch 8 --with-weights --quiet -o ", out_ / "mlp.onnx"));
  partita(cat("compile ", out_ / "mlp.onnx", " --train ", out_ / "mlp.yaml", " --set reproducible=4 --pin data=2 ",
              "--pin zero=1 --quiet -o ", out_ / "columns"));
  partita(cat("verify ", out_ / "columns"));
}

using Weights = std::map<std::string, std::vector<float>>;

Weights read_weights(const std::string& path) {
  auto file = runtime::SafetensorsFile::open(path);
  EXPECT_TRUE(file.ok()) << file.status();
  Weights out;
  for (const auto& entry : file->entries()) {
    const auto bytes = file->data(entry);
    std::vector<float>& values = out[entry.name];
    values.resize(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
  }
  return out;
}

TEST_F(Optimizers, AverageOfWeights_IsEvaluatedAndExported) {
  const std::string evaluate =
      cat("evaluate: {every: 3, batches: 1, data: {kind: tokens, dtype: u8, path: ", out_ / "tokens.bin", "}}\n");
  const std::string sgd = "optimizer: {kind: sgd, lr: 0.5}\n";
  for (const char* layout : {"", "--ranks 4 --pin pipeline=2 --pin zero=3"}) {
    SCOPED_TRACE(layout);
    partita(cat("train ", model(cat(sgd, "ema: {decay: 0.75}\n", evaluate)), layout,
                " --threads 1 --steps 3 --every 1 --checkpoint ", out_ / "ckpt", " --metrics ", out_ / "m.jsonl"));
    Weights average;
    for (int step = 1; step <= 3; ++step) {
      partita(cat("checkpoint export ", out_ / cat("ckpt/step-00000000000", step), " -o ", out_ / "now.safetensors"));
      const Weights now = read_weights(out_ / "now.safetensors");
      for (const auto& [name, values] : now) {
        std::vector<float>& of = average[name];
        if (step == 1) of = values;
        for (size_t k = 0; k < of.size(); ++k) of[k] = 0.75f * of[k] + 0.25f * values[k];
      }
    }
    partita(cat("checkpoint export ", out_ / "ckpt", " --ema -o ", out_ / "average.safetensors"));
    const Weights found = read_weights(out_ / "average.safetensors");
    ASSERT_EQ(found.size(), average.size());
    for (const auto& [name, values] : average) {
      ASSERT_EQ(found.at(name).size(), values.size());
      for (size_t k = 0; k < values.size(); ++k) EXPECT_NEAR(found.at(name)[k], values[k], 1e-6) << name << " " << k;
    }
    // The loss of the weights that were exported, on the batch that was evaluated.
    const std::string metrics = TempFolder::read(out_ / "m.jsonl");
    const double evaluated = nlohmann::json::parse(metrics.substr(metrics.rfind("{\"")))["evaluation_loss"];
    partita(cat("train ", model(sgd), " --threads 1 --steps 1 --init ", out_ / "average.safetensors", " --metrics ",
                out_ / "n.jsonl"));
    EXPECT_NEAR(evaluated, read_losses(out_ / "n.jsonl").at(0), 1e-5);
    for (const char* left : {"ckpt", "m.jsonl", "n.jsonl"}) std::filesystem::remove_all(out_ / left);
  }
}

}  // namespace
}  // namespace partita
