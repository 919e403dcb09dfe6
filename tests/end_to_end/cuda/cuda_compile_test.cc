// Code for GPUs without a GPU: every kernel of the models at hand is assembled by ptxas, and what is wrong with a
// target is said.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/cat.h"
#include "ir/recipe/read_recipe.h"
#include "nlohmann/json.hpp"
#include "tests/support/command.h"
#include "tests/support/temp_folder.h"
#include "tools/flow/compile.h"
#include "tools/flow/device_code_summary.h"
#include "tools/machine/cuda_toolkit.h"

namespace partita {
namespace {

using testing::HasSubstr;

absl::StatusOr<Compiled> compile_for(const std::string& folder, const std::string& architecture, int64_t ranks = 1) {
  CompileRequest request;
  namespace fs = std::filesystem;
  request.model = fs::exists(folder + "/model.onnx") ? folder + "/model.onnx" : folder;
  auto recipe = load_recipe(folder + "/train.yaml");
  if (!recipe.ok()) return recipe.status();
  request.recipe = *std::move(recipe);
  request.ranks = ranks;
  auto assembler = find_assembler();
  if (!assembler.ok()) return assembler.status();
  request.target.gpu = architecture;
  request.target.assembler = *assembler;
  return compile_model(request);
}

void expect_code(const std::string& folder, const std::string& architecture, int64_t ranks = 1) {
  auto compiled = compile_for(folder, architecture, ranks);
  ASSERT_TRUE(compiled.ok()) << folder << ": " << compiled.status();
  DeviceCodeSummary code = device_code(compiled->programs);
  EXPECT_EQ(compiled->programs[0].target, "cuda:" + architecture);
  EXPECT_GT(code.kernels, 0) << folder;
  EXPECT_EQ(code.spilled_bytes, 0) << folder << " for " << architecture << ": " << code.spilling << " kernels spill";
  EXPECT_LE(code.most_registers, 255);
  EXPECT_LT(code.launches, code.steps) << folder;
  const std::string ptx(compiled->programs[0].portable_kernels.begin(), compiled->programs[0].portable_kernels.end());
  for (const auto& segment : compiled->programs[0].segments) {
    for (const auto& step : segment.steps) {
      if (step.kind != runtime::StepKind::kKernel) continue;
      EXPECT_THAT(ptx, HasSubstr(".entry " + step.name + "("));
    }
  }
}

#define SKIP_WITHOUT_PTXAS() \
  if (auto found = find_assembler(); !found.ok()) GTEST_SKIP() << found.status().message()

TEST(CudaCompile_CarriedGpt2, IsAssembledForEachArchitecture) {
  SKIP_WITHOUT_PTXAS();
  for (const char* architecture : {"sm_80", "sm_90", "sm_100"}) expect_code(PARTITA_TEST_DATA "/gpt2", architecture);
}

TEST(CudaCompile_Models, AreAssembled) {
  SKIP_WITHOUT_PTXAS();
  if (!std::filesystem::exists(PARTITA_MODELS)) GTEST_SKIP() << "no models in " << PARTITA_MODELS;
  for (const auto& entry : std::filesystem::directory_iterator(PARTITA_MODELS)) {
    if (std::filesystem::exists(entry.path() / "expected.npz")) expect_code(entry.path().string(), "sm_90");
  }
}

// The widths of GPT-2 124M: rows, sums and launches as large as users have them. One layer has the kernels of twelve.
TEST(CudaCompile_Gpt2OfFullWidth, DoesNotSpill) {
  SKIP_WITHOUT_PTXAS();
  TempFolder out;
  const std::string model = out / "gpt2.onnx";
  Outcome made = run_command(cat(partita_program(), " model gpt --layers 1 --quiet -o ", model));
  ASSERT_EQ(made.code, 0) << made.text;
  for (const char* precision : {"fp32", "bf16"}) {
    const std::string recipe =
        out.write(cat(precision, ".yaml"), cat("loss: {kind: output, output: loss}\n"
                                               "optimizer: {kind: adamw, lr: 0.0003, weight_decay: 0.1}\n"
                                               "batch: {global: 8}\n"
                                               "init: [{match: '*', normal: 0.02}]\n"
                                               "precision: ",
                                               precision, "\n"));
    for (const char* architecture : {"sm_80", "sm_90", "sm_100"}) {
      Outcome compiled = run_command(cat(partita_program(), " compile ", model, " --train ", recipe,
                                         " --target cuda:", architecture, " -o ", out / "bundle"));
      ASSERT_EQ(compiled.code, 0) << compiled.text;
      EXPECT_THAT(compiled.text, HasSubstr(" 0 of them spill")) << architecture << " " << precision;
    }
  }
}

TEST(CudaCompile_TwoRanks, CodeIsTheSameTwice) {
  SKIP_WITHOUT_PTXAS();
  auto a = compile_for(PARTITA_TEST_DATA "/gpt2", "sm_90", 2), b = compile_for(PARTITA_TEST_DATA "/gpt2", "sm_90", 2);
  ASSERT_TRUE(a.ok() && b.ok()) << a.status() << b.status();
  EXPECT_TRUE(a->programs[0].kernels == b->programs[0].kernels);
  const auto &x = a->programs[0].portable_kernels, &y = b->programs[0].portable_kernels;
  const auto [at, other] = std::mismatch(x.begin(), x.end(), y.begin(), y.end());
  EXPECT_TRUE(at == x.end() && other == y.end())
      << std::string(at - std::min<int64_t>(at - x.begin(), 200), at + std::min<int64_t>(x.end() - at, 100))
      << "\n---\n"
      << std::string(other - std::min<int64_t>(other - y.begin(), 200),
                     other + std::min<int64_t>(y.end() - other, 100));
}

// States in the host's memory: what updates them is code of both sides, and proved like any other program.
void expect_offloaded(const std::string& model, const std::string& recipe, const std::string& flags) {
  TempFolder out;
  Outcome compiled = run_command(cat(partita_program(), " compile ", model, " --train ", recipe,
                                     " --target cuda:sm_90 --ranks 2 ", flags, " -o ", out / "bundle"));
  ASSERT_EQ(compiled.code, 0) << model << ": " << compiled.text;
  auto manifest = nlohmann::json::parse(TempFolder::read(out / "bundle/manifest.json"));
  EXPECT_GT(manifest["memory_bytes"]["host_state"].get<int64_t>(), 0) << model;
  EXPECT_GT(manifest["memory_bytes"]["host_arena"].get<int64_t>(), 0) << model;
  Outcome proved = run_command(cat(partita_program(), " verify ", out / "bundle"));
  EXPECT_EQ(proved.code, 0) << model << ": " << proved.text;
}

TEST(CudaCompile_Offload, IsCompiledAndProved) {
  SKIP_WITHOUT_PTXAS();
  const std::string folder = PARTITA_TEST_DATA "/gpt2";
  expect_offloaded(folder + "/model.onnx", folder + "/train.yaml", "--like zero3-offload");
  expect_offloaded(folder + "/model.onnx", folder + "/train.yaml", "--pin zero=1 --pin offload=optimizer");
  if (!std::filesystem::exists(PARTITA_MODELS)) GTEST_SKIP() << "no models in " << PARTITA_MODELS;
  for (const auto& entry : std::filesystem::directory_iterator(PARTITA_MODELS)) {
    const std::string model = entry.path().string();
    if (!std::filesystem::exists(model + "/expected.npz")) continue;
    const bool one_file = std::filesystem::exists(model + "/model.onnx");
    expect_offloaded(one_file ? model + "/model.onnx" : model, model + "/train.yaml", "--like zero3-offload");
  }
}

// What blocks keep for backward: less of it on the device, and proved.
TEST(CudaCompile_OffloadedActivations, AreCompiledAndProved) {
  SKIP_WITHOUT_PTXAS();
  const std::string folder = PARTITA_TEST_DATA "/gpt2";
  const auto memory = [&](const std::string& flags) {
    TempFolder out;
    Outcome compiled =
        run_command(cat(partita_program(), " compile ", folder, "/model.onnx --train ", folder,
                        "/train.yaml --target cuda:sm_90 --precision bf16 ", flags, " -o ", out / "bundle"));
    EXPECT_EQ(compiled.code, 0) << flags << ": " << compiled.text;
    Outcome proved = run_command(cat(partita_program(), " verify ", out / "bundle"));
    EXPECT_EQ(proved.code, 0) << flags << ": " << proved.text;
    return nlohmann::json::parse(TempFolder::read(out / "bundle/manifest.json"))["memory_bytes"];
  };
  for (const char* layout : {"--ranks 1",
                             "--ranks 8 --pin pipeline=2 --pin schedule=zero_bubble --pin tensor=2 --pin context=2 "
                             "--pin micro_batch=1"}) {
    const auto kept = memory(layout), all = memory(cat(layout, " --pin recompute=offload")),
               inputs = memory(cat(layout, " --pin recompute=full_offload"));
    EXPECT_EQ(kept["host_arena"].get<int64_t>(), 0) << layout;
    EXPECT_LT(all["arena"].get<int64_t>(), kept["arena"].get<int64_t>()) << layout;
    EXPECT_GT(inputs["host_arena"].get<int64_t>(), 0) << layout;
    EXPECT_LT(inputs["host_arena"].get<int64_t>(), all["host_arena"].get<int64_t>()) << layout;
  }
}

TEST(CudaCompile_DeepSpeedConfig, IsTaken) {
  SKIP_WITHOUT_PTXAS();
  TempFolder out;
  const std::string config = out.write("ds_config.json", R"({
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2,
    "optimizer": {"type": "Adam", "params": {"lr": 3e-5, "betas": [0.8, 0.95], "weight_decay": 3e-7}},
    "gradient_clipping": 1.0,
    "bf16": {"enabled": true},
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": true},
                          "offload_param": {"device": "cpu"}, "overlap_comm": true}
  })");
  expect_offloaded(PARTITA_TEST_DATA "/gpt2/model.onnx", config, "");
}

TEST(CudaCompile_BadTarget, IsRefusedByName) {
  SKIP_WITHOUT_PTXAS();
  TempFolder out;
  auto compile = [&](const std::string& before, const std::string& target) {
    return run_command(cat(before, " ", partita_program(),
                           " compile " PARTITA_TEST_DATA "/gpt2/model.onnx --train " PARTITA_TEST_DATA
                           "/gpt2/train.yaml --target ",
                           target, " -o ", out / "bundle"));
  };
  Outcome old = compile("", "cuda:sm_35");
  EXPECT_EQ(old.code, 2);
  EXPECT_THAT(old.text, HasSubstr("'sm_35': expected sm_80, sm_90, sm_100"));
  Outcome unknown = compile("", "tpu:v5");
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.text, HasSubstr("--target 'tpu:v5'"));
  EXPECT_FALSE(std::filesystem::exists(out / "bundle"));
}

}  // namespace
}  // namespace partita
