// Recomputation through the compiler: the arena shrinks, the proof holds, the numbers stay.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "nlohmann/json.hpp"
#include "tests/support/command.h"
#include "tests/support/temp_folder.h"
#include "tests/tools/support/verify_samples.h"
#include "tools/verify/certificate.h"

namespace partita {
namespace {

TEST(Recompute_Arena, Shrinks) {
  TempFolder out;
  Outcome made = run_command(
      partita_program() + " model gpt --layers 6 --hidden 64 --heads 4 --vocab 64 --seq 64 --quiet --with-weights -o " +
      (out / "model.onnx"));
  ASSERT_EQ(made.code, 0) << made.text;
  out.write("train.yaml", "loss: {kind: output, output: loss}\nbatch: {global: 8}\nbind: {batch: 8}\n");
  for (std::vector<std::string> layout : {std::vector<std::string>{}, {"tensor=2", "zero=3"}}) {
    int64_t bytes[4];
    for (int k = 0; k < 4; ++k) {
      constexpr const char* kModes[] = {"recompute=none", "recompute=selective", "recompute=full",
                                        "recompute={full: 0..1, mlp: 2, attention: [3], all_but_attention: 4}"};
      std::vector<std::string> pins = layout;
      pins.push_back(kModes[k]);
      auto bundle = sample_bundle(out.path(), {.ranks = layout.empty() ? 1 : 4, .like = {}, .pins = pins});
      ASSERT_TRUE(bundle.ok()) << bundle.status();
      bytes[k] = bundle->programs[0].program.region_bytes[static_cast<int>(runtime::Region::kArena)];
      auto verdict = verifier::check_bundle(*bundle);
      EXPECT_TRUE(verdict.ok()) << kModes[k] << ": " << verdict.status();
    }
    EXPECT_LT(bytes[1], bytes[0] * 9 / 10);
    EXPECT_LT(bytes[2], bytes[0] / 2);
    EXPECT_LT(bytes[3], bytes[0]);
    EXPECT_GT(bytes[3], bytes[2]);
  }
}

// Blocks of a ResNet that do not repeat: the first of each stage, and what is before them.
TEST(Recompute_Arena, OfAResNetShrinks) {
  TempFolder out;
  Outcome made =
      run_command(partita_program() + " model resnet --depth 18 --classes 10 --image 64 --batch 32 --quiet " +
                  "--with-weights -o " + (out / "model.onnx"));
  ASSERT_EQ(made.code, 0) << made.text;
  out.write("train.yaml",
            "loss: {kind: cross_entropy, output: logits, target: target}\noptimizer: {kind: sgd, lr: 0.01}\n");
  int64_t bytes[2];  // gradients of 45 MB among them
  for (int k = 0; k < 2; ++k) {
    auto bundle =
        sample_bundle(out.path(), {.ranks = 1, .like = {}, .pins = {k == 0 ? "recompute=none" : "recompute=full"}});
    ASSERT_TRUE(bundle.ok()) << bundle.status();
    bytes[k] = bundle->programs[0].program.region_bytes[static_cast<int>(runtime::Region::kArena)];
    auto verdict = verifier::check_bundle(*bundle);
    EXPECT_TRUE(verdict.ok()) << verdict.status();
  }
  EXPECT_LT(bytes[1], bytes[0] * 9 / 10);
}

// Chunks of a stage share slots though one leaves less than the other: memory ends behind the last that is used.
TEST(Recompute_Arena, OfChunksThatLeaveDifferentAmountsIsProved) {
  TempFolder out;
  const Outcome made = run_partita("model bert --layers 4 --hidden 48 --heads 3 --vocab 200 --seq 40 --quiet -o " +
                                   (out / "model.onnx") + " --with-weights");
  ASSERT_EQ(made.code, 0) << made.text;
  out.write("train.yaml", "optimizer: {kind: sgd, lr: 0.01}\nbatch: {global: 4}\n");
  const Outcome compiled = run_partita("compile " + (out / "model.onnx") + " --train " + (out / "train.yaml") +
                                       " --quiet --pin pipeline=2 --pin micro_batch=1 --pin schedule=interleaved "
                                       "--pin interleave=2 --pin 'recompute={selective: [0]}' -o " +
                                       (out / "bundle"));
  ASSERT_EQ(compiled.code, 0) << compiled.text;
  const Outcome proved = run_partita("verify " + (out / "bundle"));
  EXPECT_EQ(proved.code, 0) << proved.text;
}

TEST(Recompute_Model, WithoutBlocksIsPointedOut) {
  TempFolder out;
  const std::string model = out / "model.onnx";
  ASSERT_EQ(run_command(partita_program() + " model mlp --with-weights --quiet -o " + model).code, 0);
  const std::string recipe = out.write("train.yaml",
                                       "loss: {kind: cross_entropy, output: logits, target: target}\n"
                                       "optimizer: {kind: sgd, lr: 0.01}\nbatch: {global: 4}\n");
  for (const char* mode : {"full", "none"}) {
    Outcome o = run_command(partita_program() + " compile " + model + " --train " + recipe +
                            " --set recompute=" + mode + " -o " + (out / "bundle"));
    EXPECT_EQ(o.code, 0) << o.text;
    EXPECT_EQ(o.text.find("recompute: full: nothing is computed again") != std::string::npos, mode[0] == 'f') << o.text;
  }
}

TEST(Recompute_Losses, Stay) {
  TempFolder out;
  std::string folder = std::string(PARTITA_TEST_DATA) + "/gpt2", text;
  for (int k = 0; k < 2000; ++k) text += "a line of text number " + std::to_string(k * k % 977) + "\n";
  const std::string data = out.write("text.bin", text);
  auto losses = [&](const std::string& flags) {
    std::string file = out / "metrics.jsonl";
    Outcome done =
        run_command("rm -f " + file + "; " + partita_program() + " train " + folder + "/model.onnx --train " + folder +
                    "/train.yaml --data " + data + " --quiet --steps 4 --metrics " + file + " " + flags);
    EXPECT_EQ(done.code, 0) << flags << ": " << done.text;
    std::vector<double> values;
    std::ifstream lines(file);
    for (std::string line; std::getline(lines, line);)
      values.push_back(nlohmann::json::parse(line)["loss"].get<double>());
    return values;
  };
  for (std::string layout : {"--ranks 1", "--ranks 4 --like zero3 --pin tensor=2"}) {
    std::vector<double> none = losses(layout + " --pin recompute=none");
    ASSERT_EQ(none.size(), 4u);
    for (const char* mode : {"selective", "full", "all_but_attention", "'{attention: 0, mlp: 1}'"}) {
      std::vector<double> again = losses(layout + " --pin recompute=" + mode);
      ASSERT_EQ(again.size(), none.size());
      for (size_t k = 0; k < none.size(); ++k) EXPECT_NEAR(again[k], none[k], 1e-5 * std::abs(none[k])) << mode;
    }
  }
}

}  // namespace
}  // namespace partita
