// Weights that are not trained, under ZeRO-3: no rank holds them whole.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "nlohmann/json.hpp"
#include "tests/support/command.h"
#include "tests/support/losses.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tensor_difference.h"

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
    const double each = precision == std::string("bf16") ? 2 : 4;
    const auto whole = bytes(" --pin zero=2"), shards = bytes(" --pin zero=3 --pin prefetch_blocks=1");
    EXPECT_GT(whole.first, kWeights * each);
    EXPECT_LT(whole.first, 1.15 * kWeights * each);
    EXPECT_LT(shards.first, 0.5 * kWeights * each);
    EXPECT_NEAR(whole.second / (kWeights * each), 1, 0.02);
    EXPECT_NEAR(shards.second / (kWeights * each), 0.25, 0.01);
  }
}

// A GPT of two layers, of which the attention, the MLPs and the positions are frozen.
class FrozenLayers : public testing::Test {
 protected:
  void SetUp() override {
    const Outcome made =
        run_partita("model gpt --layers 2 --hidden 192 --heads 4 --vocab 61 --seq 16 --quiet --with-weights -o " +
                    (out_ / "model.onnx"));
    ASSERT_EQ(made.code, 0) << made.text;
    std::string tokens;
    for (int k = 0; k < 4000; ++k) tokens += static_cast<char>(k * k % 61);
    out_.write("text.bin", tokens);
    out_.write("all.yaml",
               "loss: {kind: output, output: loss}\noptimizer: {kind: adamw, lr: 0.003, eps: 0.001}\n"
               "batch: {global: 8}\nclip_grad_norm: 1.0\ndata: {kind: tokens, dtype: u8}\n"
               "evaluate: {every: 2, batches: 1, data: {kind: tokens, dtype: u8, path: " +
                   (out_ / "text.bin") + "}}\n");
    out_.write("train.yaml", TempFolder::read(out_ / "all.yaml") + "frozen: ['*attn*', '*mlp*', '*wpe*']\n");
  }

  void compile(const std::string& flags, const std::string& bundle, const std::string& recipe = "train.yaml") {
    std::filesystem::remove_all(out_ / bundle);
    Outcome o = run_partita("compile " + (out_ / "model.onnx") + " --train " + (out_ / recipe) + " --quiet " + flags +
                            " -o " + (out_ / bundle));
    ASSERT_EQ(o.code, 0) << o.text;
  }
  std::vector<double> run(const std::string& bundle, const std::string& flags, int steps) {
    std::filesystem::remove(out_ / "m.jsonl");
    Outcome o =
        run_partita("run " + (out_ / bundle) + " --data " + (out_ / "text.bin") + " --threads 1 --quiet --steps " +
                    std::to_string(steps) + " --metrics " + (out_ / "m.jsonl") + " " + flags);
    EXPECT_EQ(o.code, 0) << flags << o.text;
    return read_losses(out_ / "m.jsonl");
  }
  void verify(const std::string& bundle) {
    Outcome o = run_partita("verify " + (out_ / bundle));
    EXPECT_EQ(o.code, 0) << o.text;
  }
  double state_bytes(const std::string& bundle) {
    const auto bytes = nlohmann::json::parse(TempFolder::read(out_ / (bundle + "/manifest.json")))["memory_bytes"];
    return bytes["state"].get<double>() + bytes["host_state"].get<double>();
  }
  // Steps 0 to 2, and a checkpoint of them.
  std::string checkpoint(const std::string& bundle) {
    run(bundle, "--checkpoint " + (out_ / (bundle + "_ckpt")), 3);
    return out_ / (bundle + "_ckpt/step-000000000003");
  }

  TempFolder out_;
};

// They are gathered in forward and again in backward, proved, kept by checkpoints of any layout, and never change.
TEST_F(FrozenLayers, TrainTheRestAsOneRankDoes) {
  compile("", "serial");
  const std::vector<double> one = run("serial", "--save " + (out_ / "one"), 6);
  ASSERT_EQ(one.size(), 6u);
  EXPECT_LT(one.back(), one.front());
  for (const char* pins : {"--ranks 4 --pin data=4 --pin zero=3 --pin micro_batch=1",
                           "--ranks 4 --pin data=4 --pin zero=3 --pin micro_batch=1 --pin reshard_after_forward=false",
                           "--ranks 4 --pin data=4 --pin zero=3 --pin zero_group=2", "--ranks 2 --like zero3-offload",
                           "--ranks 4 --pin tensor=2 --pin data=2 --pin zero=3",
                           "--ranks 4 --pin pipeline=2 --pin data=2 --pin zero=3 --pin micro_batch=2",
                           "--ranks 2 --pin data=2 --pin zero=3 --pin recompute=full"}) {
    SCOPED_TRACE(pins);
    std::filesystem::remove_all(out_ / "ckpt");
    compile(pins, "bundle");
    EXPECT_LT(state_bytes("bundle"), 0.6 * state_bytes("serial"));
    verify("bundle");
    // Half of the run, then the rest of it on one rank.
    std::vector<double> losses = run("bundle", "--checkpoint " + (out_ / "ckpt"), 3);
    for (double loss : run("serial", "--resume --checkpoint " + (out_ / "ckpt") + " --save " + (out_ / "there"), 6))
      losses.push_back(loss);
    ASSERT_EQ(losses.size(), one.size());
    for (size_t k = 0; k < one.size(); ++k) EXPECT_NEAR(losses[k] / one[k], 1, 1e-5) << k;
    EXPECT_LT(tensor_difference(out_ / "there", out_ / "one"), 1e-3);
  }
}

// Held in 16 bits they are what a program that trains them computes with before it has changed them.
TEST_F(FrozenLayers, HeldInSixteenBits_TrainTheRestAsOneRankDoes) {
  constexpr double kHeld = 2 * (4 * 192 * 192 + 2 * 4 * 192 * 192);  // elements of the matrices
  compile("", "wide");
  compile("--precision bf16", "serial");
  compile("--precision bf16", "all", "all.yaml");
  EXPECT_NEAR((state_bytes("wide") - state_bytes("serial")) / (2 * kHeld), 1, 0.01);
  const std::vector<double> one = run("serial", "", 6);
  ASSERT_EQ(one.size(), 6u);
  EXPECT_EQ(one.front(), run("all", "", 1).front());
  EXPECT_LT(one.back(), one.front());
  for (const char* pins : {"--ranks 2 --like ddp", "--ranks 4 --pin data=4 --pin zero=3 --pin micro_batch=1",
                           "--ranks 2 --like zero3-offload", "--ranks 2 --pin tensor=2",
                           "--ranks 4 --pin tensor=2 --pin data=2 --pin zero=3",
                           "--ranks 4 --pin pipeline=2 --pin data=2 --pin zero=3 --pin micro_batch=2"}) {
    SCOPED_TRACE(pins);
    compile(std::string("--precision bf16 ") + pins, "bundle");
    verify("bundle");
    const std::vector<double> losses = run("bundle", "", 6);
    ASSERT_EQ(losses.size(), one.size());
    for (size_t k = 0; k < one.size(); ++k) EXPECT_NEAR(losses[k] / one[k], 1, 2e-3) << k;
  }
}

// Small ones too: a pretrained model's are as much its own as large ones.
TEST_F(FrozenLayers, ComeFromTheFileThatARunStartsFrom) {
  for (const char* seed : {"1", "2"}) {
    const Outcome made = run_partita(
        "model gpt --layers 1 --hidden 32 --heads 4 --vocab 61 --seq 16 --quiet "
        "--with-weights -o " +
        (out_ / "model.onnx") + " --seed " + seed);
    ASSERT_EQ(made.code, 0) << made.text;
    compile("", seed);
  }
  const std::string start = " --init " + checkpoint("1");
  EXPECT_NE(run("1", "", 1), run("2", "", 1));
  EXPECT_EQ(run("1", start, 2), run("2", start, 2));
}

// A checkpoint has frozen weights as the run holds them: in 16 bits. A run in that precision goes on bit for bit; one
// in f32 has the unrounded values from the model, and a file for PyTorch from the example.
TEST_F(FrozenLayers, HeldInSixteenBits_AreNotLostInFp32) {
  using runtime::SafetensorsFile;
  const std::string name = "transformer.h.0.mlp.up.weight", states = "/states.safetensors";
  compile("", "wide");
  compile("--precision bf16", "narrow");
  const std::vector<double> one = run("narrow", "", 6);
  const std::string wide = checkpoint("wide"), narrow = checkpoint("narrow");
  auto bytes = [&](const std::string& path, DType dtype) {
    auto file = SafetensorsFile::open(path);
    EXPECT_TRUE(file.ok()) << file.status();
    const auto* entry = file.ok() ? file->find(name) : nullptr;
    EXPECT_TRUE(entry != nullptr && entry->dtype == dtype) << path;
    if (entry == nullptr) return std::vector<std::byte>();
    auto data = file->data(*entry);
    return std::vector<std::byte>(data.begin(), data.end());
  };
  const std::vector<std::byte> exact = bytes(wide + states, DType::kF32),
                               rounded = bytes(narrow + states, DType::kBF16);
  ASSERT_FALSE(rounded.empty());
  ASSERT_EQ(exact.size(), 2 * rounded.size());
  EXPECT_EQ(run("narrow", "--resume --checkpoint " + (out_ / "narrow_ckpt"), 6),
            std::vector(one.begin() + 3, one.end()));

  run("wide", "--resume " + narrow + " --checkpoint " + (out_ / "widened"), 4);
  EXPECT_EQ(bytes(out_ / ("widened/step-000000000004" + states), DType::kF32), exact);
  run("narrow", "--resume " + wide + " --checkpoint " + (out_ / "narrowed"), 4);
  EXPECT_EQ(bytes(out_ / ("narrowed/step-000000000004" + states), DType::kBF16), rounded);

  // The checkpoint of the run in fp32 stands for the module's own file.
  auto write = [&](std::vector<std::byte> values) {
    auto file = SafetensorsFile::open(wide + states);
    std::vector<runtime::TensorInfo> module;
    for (const auto& e : file->entries()) {
      if (!e.name.starts_with("optimizer/") && e.name != "partita.step") module.push_back(e);
    }
    auto writer = runtime::SafetensorsWriter::create(out_ / "module.safetensors", module);
    for (const auto& e : module)
      EXPECT_TRUE(
          (*writer)
              ->write(e.name, e.name == name ? std::span<const std::byte>(values) : file->data(*file->find(e.name)))
              .ok());
    EXPECT_TRUE((*writer)->finish().ok());
    return run_partita("checkpoint export " + narrow + " -o " + (out_ / "out.safetensors") + " --like " +
                       (out_ / "module.safetensors"));
  };
  Outcome o = write(exact);
  EXPECT_EQ(o.code, 0) << o.text;
  EXPECT_EQ(o.text, "");
  EXPECT_EQ(bytes(out_ / "out.safetensors", DType::kF32), exact);
  std::vector<std::byte> other = exact;
  other[3] ^= std::byte{0x80};  // the first element's sign
  o = write(other);
  EXPECT_EQ(o.code, 0) << o.text;
  EXPECT_THAT(o.text, testing::HasSubstr("written as rounded to 16 bits for training: '" + name + "'"));
  std::vector<std::byte> mixed = exact;
  mixed[0] = mixed[1] = std::byte{0}, mixed[2] = rounded[0], mixed[3] = rounded[1];
  EXPECT_EQ(bytes(out_ / "out.safetensors", DType::kF32), mixed);
}

}  // namespace
}  // namespace partita
