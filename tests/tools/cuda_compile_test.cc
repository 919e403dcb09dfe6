// Code for GPUs without a GPU: every kernel of the models at hand is assembled by ptxas, and what is wrong with a
// target is said.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/cat.h"
#include "frontend/recipe.h"
#include "tests/temp_folder.h"
#include "tests/tools/command.h"
#include "tools/compile.h"
#include "tools/cuda_toolkit.h"

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
