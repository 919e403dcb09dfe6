// Attention as steps of the CUDA module's device where cuDNN has none: by our own kernels, with a word, unless the
// recipe insists.
#ifdef PARTITA_STAND_INS
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "ir/graph/evaluate.h"
#include "ir/op/op_def.h"
#include "tests/codegen/support/cuda_on_host.h"
#include "tests/codegen/support/interpreter.h"

namespace partita {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kScale = 0.3;

runtime::Step step_of(DType dtype, const std::string& kernel, int64_t head = 16) {
  const Shape shape{1, 2, 9, head};
  runtime::Step step{.kind = runtime::StepKind::kLibrary,
                     .name = "attention",
                     .inputs = 3,
                     .params = {{"scale", kScale}, {"causal", int64_t{1}}}};
  if (!kernel.empty()) step.params["kernel"] = kernel;
  for (int k = 0; k < 4; ++k) step.operands.push_back({{}, dtype, shape});
  step.operands.push_back({{}, DType::kF32, {1, 2, 9}});
  return step;
}

struct Opened {
  runtime::Program program;
  std::unique_ptr<runtime::Device> device;
  Opened() {
    program.target = "cuda:sm_90";
    device = open_cuda_on_host(program, 0).value();
  }
  absl::Status prepare(const runtime::Step& step) { return device->prepare(program, step).status(); }
  double reading(const std::string& name) {
    for (const auto& [key, value] : device->readings()) {
      if (key == name) return value;
    }
    return -1;
  }
};

TEST(CudaAttentionStep, LeftToUs_IsOursWhereCudnnHasNone) {
  const runtime::Step step = step_of(DType::kBF16, "");
  std::vector<Tensor> inputs;
  for (uint64_t k = 0; k < 3; ++k) inputs.push_back(random_tensor({DType::kBF16, step.operands[k].shape}, k + 1));
  Attrs attrs;
  attrs.set("scale", kScale), attrs.set("causal", int64_t{1});
  const std::vector<const Tensor*> operands = {&inputs[0], &inputs[1], &inputs[2]};
  const std::vector<Tensor> expected = evaluate_op(*find_op("attention"), attrs, operands);
  const std::vector<Tensor> found = run_step_on_cuda(step, inputs, Tensor::zeros(expected[0].type));
  ASSERT_EQ(found.size(), 2u);
  for (size_t k = 0; k < expected[0].f.size(); ++k) EXPECT_NEAR(found[0].f[k], expected[0].f[k], 0.02);
  for (size_t k = 0; k < expected[1].f.size(); ++k) EXPECT_NEAR(found[1].f[k], expected[1].f[k], 1e-4);
}

TEST(CudaAttentionStep, MetricsTellWhose) {
  Opened on;
  EXPECT_EQ(on.reading("gpu_attention_own"), -1) << "no attention yet";
  Opened again;
  ASSERT_TRUE(again.prepare(step_of(DType::kF16, "auto")).ok());
  ASSERT_TRUE(again.prepare(step_of(DType::kBF16, "")).ok());
  EXPECT_EQ(again.reading("gpu_attention_own"), 2);
  EXPECT_EQ(again.reading("gpu_attention_cudnn"), 0);
}

TEST(CudaAttentionStep, WhatTheRecipeWants_IsRefusedWithTheShapeAndTheReason) {
  Opened on;
  EXPECT_TRUE(on.prepare(step_of(DType::kBF16, "own")).ok());
  EXPECT_THAT(std::string(on.prepare(step_of(DType::kBF16, "cudnn")).message()),
              AllOf(HasSubstr("attention: cudnn"), HasSubstr("bf16 q [1, 2, 9, 16]"), HasSubstr("causal")));
  EXPECT_THAT(std::string(on.prepare(step_of(DType::kF32, "cudnn")).message()), HasSubstr("bf16 and fp16"));
  runtime::Step masked = step_of(DType::kBF16, "cudnn");
  masked.operands.insert(masked.operands.begin() + 3, {{}, DType::kBool, {1, 1, 1, 9}});
  masked.inputs = 4;
  EXPECT_THAT(std::string(on.prepare(masked).message()), HasSubstr("without keys"));
}

// Heads that only cuDNN might take.
TEST(CudaAttentionStep, LargeHeads_AreRefusedWithWhatCudnnSaid) {
  Opened on;
  EXPECT_THAT(std::string(on.prepare(step_of(DType::kBF16, "", 192)).message()),
              AllOf(HasSubstr("at most 128 elements, found 192"), HasSubstr("cuDNN")));
}

}  // namespace
}  // namespace partita
#endif
