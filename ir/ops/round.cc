#include "base/cat.h"
#include "ir/graph/builder.h"
#include "ir/ops/elementwise.h"

namespace partita {

// Towards minus infinity. The gradient of all three is zero.
extern const OpDef kFloor = {
    .name = "floor",
    .formula_of = nonlinear_formula,
    .infer = same_float_type,
    .flops_per_point = 1,
    .gradient = [](const OpUse&) -> std::vector<ValueId> { return {kNoValue}; },
    .scalar = unary_body<ScalarOp::kFloor>,
};

// Towards plus infinity.
extern const OpDef kCeil = {
    .name = "ceil",
    .formula_of = nonlinear_formula,
    .infer = same_float_type,
    .flops_per_point = 1,
    .gradient = [](const OpUse&) -> std::vector<ValueId> { return {kNoValue}; },
    .scalar = unary_body<ScalarOp::kCeil>,
};

// To the nearest whole number, halves to even.
extern const OpDef kRound = {
    .name = "round",
    .formula_of = nonlinear_formula,
    .infer = same_float_type,
    .flops_per_point = 1,
    .gradient = [](const OpUse&) -> std::vector<ValueId> { return {kNoValue}; },
    .scalar = unary_body<ScalarOp::kRoundEven>,
};

// The largest power of two that is at most |x|; 0 for what is below the least normal number, infinity for infinity and
// NaN.
extern const OpDef kPowerOfTwo = {
    .name = "power_of_two",
    .formula_of = nonlinear_formula,
    .infer = [](const OpView& use) -> absl::StatusOr<std::vector<TensorType>> {
      if (use.dtype() == DType::kF32 || use.dtype() == DType::kF64) return std::vector<TensorType>{use.inputs[0]};
      return absl::InvalidArgumentError(cat("expected f32 or f64, found ", to_string(use.inputs[0])));
    },
    .flops_per_point = 1,
    .gradient = [](const OpUse&) -> std::vector<ValueId> { return {kNoValue}; },
    .scalar = unary_body<ScalarOp::kPowerOfTwo>,
    .precision = OperandPrecision::kWide,
};

}  // namespace partita
