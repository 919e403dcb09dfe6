#include "ir/graph/builder.h"
#include "ir/ops/elementwise.h"

namespace partita {
namespace {

// 1 - v^2
ValueId one_minus_square(Builder& b, ValueId v) { return b.sub(b.scalar(b.dtype(v), 1), b.mul(v, v)); }

}  // namespace

// Hyperbolic sine.
extern const OpDef kSinh = {
    .name = "sinh",
    .formula_of = nonlinear_formula,
    .infer = same_float_type,
    .flops_per_point = 16,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      return {use.b.mul(use.gradients[0], use.b.emit("cosh", {use.inputs[0]}))};
    },
    .scalar = unary_body<ScalarOp::kSinh>,
    .precision = OperandPrecision::kWide,
};

// Hyperbolic cosine.
extern const OpDef kCosh = {
    .name = "cosh",
    .formula_of = nonlinear_formula,
    .infer = same_float_type,
    .flops_per_point = 16,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      return {use.b.mul(use.gradients[0], use.b.emit("sinh", {use.inputs[0]}))};
    },
    .scalar = unary_body<ScalarOp::kCosh>,
    .precision = OperandPrecision::kWide,
};

// Hyperbolic tangent.
extern const OpDef kTanh = {
    .name = "tanh",
    .formula_of = nonlinear_formula,
    .infer = same_float_type,
    .flops_per_point = 16,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      return {use.b.mul(use.gradients[0], one_minus_square(use.b, use.outputs[0]))};
    },
    .scalar = unary_body<ScalarOp::kTanh>,
};

}  // namespace partita
