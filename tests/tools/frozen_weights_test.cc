// Weights that are not trained, under ZeRO-3: no rank holds them whole.
#include <gtest/gtest.h>

#include <filesystem>

#include "nlohmann/json.hpp"
#include "tests/temp_folder.h"
#include "tests/tools/command.h"
#include "tests/tools/losses.h"
#include "tests/tools/tensor_difference.h"

namespace partita {
namespace {

// Fine-tuning of norms and biases: the matrices are frozen, and each rank holds a fourth of them.
TEST(FrozenWeights, AreSharded) {
  TempFolder out;
  ASSERT_EQ(run_command(partita_program() +
                        " model gpt --layers 12 --hidden 1024 --heads 8 --vocab 1000 --seq 32 --quiet -o " +
                        (out / "model.onnx"))
                .code,
            0);
  out.write("train.yaml", "batch: {global: 8}\noptimizer: {kind: adamw, lr: 0.001}\ntrainable: ['*.bias', '*ln_*']\n");
  out.write("cluster.yaml", "device: RTX-4090\ndevices_per_node: 4\nlinks: [{kind: pcie, group: 4}]\n");
  for (const char* precision : {"fp32", "bf16"}) {
    SCOPED_TRACE(precision);
    // Of the program that is laid out, and of the parameters as the cost model counts them.
    auto bytes = [&](const std::string& pins) {
      const Outcome made = run_command(partita_program() + " plan " + (out / "model.onnx") + " --train " +
                                       (out / "train.yaml") + " --cluster " + (out / "cluster.yaml") +
                                       " --pin data=4 --pin micro_batch=1 --pin recompute=none --quiet --precision " +
                                       precision + pins + " -o " + (out / "plan.json"));
      EXPECT_EQ(made.code, 0) << made.text;
      const auto plan = nlohmann::json::parse(TempFolder::read(out / "plan.json"));
      return std::pair(plan["predicted"]["program_bytes"][0].get<double>(),
                       plan["stages"][0]["memory"]["parameters"].get<double>());
    };
    constexpr double kWeights = 152213504;
    const double each = precision == std::string("bf16") ? 4 + 2 : 4;  // and a copy to compute with
    const auto whole = bytes(" --pin zero=2"), shards = bytes(" --pin zero=3");
    EXPECT_GT(whole.first, kWeights * each);
    EXPECT_LT(shards.first, 0.5 * kWeights * each);
    EXPECT_NEAR(whole.second / (kWeights * each), 1, 0.02);
    EXPECT_NEAR(shards.second / (kWeights * each), 0.25, 0.01);
  }
}

// They are gathered in forward and again in backward, proved, kept by checkpoints of any layout, and never change.
TEST(FrozenWeights, TrainTheRestAsOneRankDoes) {
  TempFolder out;
  const Outcome made = run_command(partita_program() +
                                   " model gpt --layers 2 --hidden 192 --heads 4 --vocab 61 --seq 16 --quiet "
                                   "--with-weights -o " +
                                   (out / "model.onnx"));
  ASSERT_EQ(made.code, 0) << made.text;
  out.write("train.yaml",
            "loss: {kind: output, output: loss}\noptimizer: {kind: adamw, lr: 0.003, eps: 0.001}\n"
            "batch: {global: 8}\nclip_grad_norm: 1.0\ndata: {kind: tokens, dtype: u8}\n"
            "frozen: ['*attn*', '*mlp*', '*wpe*']\n");
  std::string tokens;
  for (int k = 0; k < 4000; ++k) tokens += static_cast<char>(k * k % 61);
  out.write("text.bin", tokens);
  auto compile = [&](const std::string& pins, const std::string& bundle) {
    Outcome o = run_command(partita_program() + " compile " + (out / "model.onnx") + " --train " +
                            (out / "train.yaml") + " --quiet " + pins + " -o " + (out / bundle));
    ASSERT_EQ(o.code, 0) << o.text;
  };
  auto run = [&](const std::string& bundle, const std::string& flags, int steps) {
    std::filesystem::remove(out / "m.jsonl");
    Outcome o = run_command(partita_program() + " run " + (out / bundle) + " --data " + (out / "text.bin") +
                            " --threads 1 --quiet --steps " + std::to_string(steps) + " --metrics " +
                            (out / "m.jsonl") + " " + flags);
    EXPECT_EQ(o.code, 0) << flags << o.text;
    return read_losses(out / "m.jsonl");
  };
  auto state_bytes = [&](const std::string& bundle) {
    const auto bytes = nlohmann::json::parse(TempFolder::read(out / (bundle + "/manifest.json")))["memory_bytes"];
    return bytes["state"].get<double>() + bytes["host_state"].get<double>();
  };
  compile("", "serial");
  const std::vector<double> one = run("serial", "--save " + (out / "one"), 6);
  ASSERT_EQ(one.size(), 6u);
  EXPECT_LT(one.back(), one.front());
  for (const char* pins : {"--ranks 4 --pin data=4 --pin zero=3 --pin micro_batch=1",
                           "--ranks 4 --pin data=4 --pin zero=3 --pin micro_batch=1 --pin reshard_after_forward=false",
                           "--ranks 4 --pin data=4 --pin zero=3 --pin zero_group=2", "--ranks 2 --like zero3-offload",
                           "--ranks 4 --pin tensor=2 --pin data=2 --pin zero=3",
                           "--ranks 4 --pin pipeline=2 --pin data=2 --pin zero=3 --pin micro_batch=2",
                           "--ranks 2 --pin data=2 --pin zero=3 --pin recompute=full"}) {
    SCOPED_TRACE(pins);
    std::filesystem::remove_all(out / "bundle");
    std::filesystem::remove_all(out / "ckpt");
    compile(pins, "bundle");
    EXPECT_LT(state_bytes("bundle"), 0.6 * state_bytes("serial"));
    Outcome verified = run_command(partita_program() + " verify " + (out / "bundle"));
    EXPECT_EQ(verified.code, 0) << verified.text;
    // Half of the run, then the rest of it on one rank.
    std::vector<double> losses = run("bundle", "--checkpoint " + (out / "ckpt"), 3);
    for (double loss : run("serial", "--resume --checkpoint " + (out / "ckpt") + " --save " + (out / "there"), 6))
      losses.push_back(loss);
    ASSERT_EQ(losses.size(), one.size());
    for (size_t k = 0; k < one.size(); ++k) EXPECT_NEAR(losses[k] / one[k], 1, 1e-5) << k;
    EXPECT_LT(tensor_difference(out / "there", out / "one"), 1e-3);
  }
}

}  // namespace
}  // namespace partita
