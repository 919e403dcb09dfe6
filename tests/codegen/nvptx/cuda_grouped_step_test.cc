// Grouped products as steps of the CUDA module's device: what it launches, with which memory.
#ifdef PARTITA_STAND_INS
#include <gtest/gtest.h>

#include "ir/graph/evaluate.h"
#include "ir/op/op_def.h"
#include "tests/codegen/support/cuda_on_host.h"
#include "tests/codegen/support/interpreter.h"

namespace partita {
namespace {

void expect_reference(const char* op, const Attrs& attrs, runtime::Params params, const std::vector<Tensor>& inputs,
                      double tolerance) {
  std::vector<const Tensor*> operands;
  for (const Tensor& t : inputs) operands.push_back(&t);
  const Tensor expected = evaluate_op(*find_op(op), attrs, operands)[0];
  runtime::Step step{.kind = runtime::StepKind::kLibrary,
                     .name = op,
                     .inputs = static_cast<int32_t>(inputs.size()),
                     .params = std::move(params)};
  for (const Tensor& t : inputs) step.operands.push_back({{}, t.type.dtype, t.type.shape});
  step.operands.push_back({{}, expected.type.dtype, expected.type.shape});
  const std::vector<Tensor> found = run_step_on_cuda(step, inputs, random_tensor(expected.type, 9));
  ASSERT_EQ(found.size(), 1u);
  for (size_t k = 0; k < expected.f.size(); ++k)
    ASSERT_NEAR(found[0].f[k], expected.f[k], tolerance * (1 + std::abs(expected.f[k]))) << op << " [" << k << "]";
}

TEST(CudaGroupedStep, IsThatOfTheReference) {
  constexpr int64_t kRows = 150, kInner = 40, kColumns = 136, kExperts = 4;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}) {
    for (const DType index : {DType::kI64, DType::kI32}) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + " " + std::string(dtype_name(index)));
      const double tolerance = dtype == DType::kBF16 ? 2e-2 : dtype == DType::kF16 ? 3e-3 : 1e-5;
      Tensor chosen = Tensor::zeros({index, {kRows}});
      for (int64_t r = 0; r < kRows; ++r) chosen.i[r] = r * r % 7 % 3;  // the last expert has no rows
      const auto rows = [&](int64_t width, uint64_t seed) { return random_tensor({dtype, {kRows, width}}, seed); };
      const auto experts = [&](int64_t k, int64_t n) { return random_tensor({dtype, {kExperts, k, n}}, 3); };
      expect_reference("grouped_matmul", {}, {}, {rows(kInner, 1), experts(kInner, kColumns), chosen}, tolerance);
      expect_reference("grouped_matmul", {{"transpose_b", int64_t{1}}}, {{"transpose_b", int64_t{1}}},
                       {rows(kInner, 1), experts(kColumns, kInner), chosen}, tolerance);
      expect_reference("grouped_matmul_grad", {{"size", kExperts}}, {{"size", kExperts}},
                       {rows(kInner, 1), rows(kColumns, 2), chosen}, tolerance);
    }
  }
}

// Two parts of two of six experts; rows for each part, for each index, or one for three indices.
TEST(CudaGroupedStep, PartsAreThoseOfTheReference) {
  constexpr int64_t kIndices = 90, kInner = 40, kColumns = 72;
  Tensor chosen = Tensor::zeros({DType::kI64, {kIndices}}), first = Tensor::zeros({DType::kI64, {2}});
  for (int64_t r = 0; r < kIndices; ++r) chosen.i[r] = r * r % 11 % 6;
  first.i = {1, 4};
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const double tolerance = dtype == DType::kBF16 ? 2e-2 : 1e-5;
    for (int64_t rows : {2 * kIndices, kIndices, kIndices / 3}) {
      SCOPED_TRACE(std::string(dtype_name(dtype)) + " " + std::to_string(rows));
      const Tensor x = random_tensor({dtype, {rows, kInner}}, 1),
                   g = random_tensor({dtype, {2 * kIndices, kColumns}}, 2),
                   w = random_tensor({dtype, {4, kInner, kColumns}}, 3);
      expect_reference("grouped_matmul", {{"total", int64_t{6}}}, {{"total", int64_t{6}}}, {x, w, chosen, first},
                       tolerance);
      expect_reference("grouped_matmul_grad", {{"size", int64_t{2}}, {"total", int64_t{6}}},
                       {{"size", int64_t{2}}, {"total", int64_t{6}}}, {x, g, chosen, first}, tolerance);
    }
  }
}

TEST(CudaGroupedStep, NothingToMultiply) {
  const Tensor none = Tensor::zeros({DType::kI64, {0}});
  const auto zeros = [](Shape shape) { return Tensor::zeros({DType::kF32, std::move(shape)}); };
  expect_reference("grouped_matmul", {}, {}, {zeros({0, 3}), zeros({2, 3, 4}), none}, 0);
  expect_reference("grouped_matmul", {}, {}, {zeros({2, 0}), zeros({1, 0, 4}), Tensor::zeros({DType::kI64, {2}})}, 0);
  expect_reference("grouped_matmul_grad", {{"size", int64_t{2}}}, {{"size", int64_t{2}}},
                   {zeros({0, 3}), zeros({0, 4}), none}, 0);
}

}  // namespace
}  // namespace partita
#endif
