#include "ir/graph/builder.h"
#include "ir/ops/elementwise.h"

namespace partita {
namespace {

// 1 - v^2
ValueId one_minus_square(Builder& b, ValueId v) { return b.sub(b.scalar(b.dtype(v), 1), b.mul(v, v)); }
// 1 + v^2
ValueId one_plus_square(Builder& b, ValueId v) { return b.add_scalar(b.mul(v, v), 1); }

}  // namespace

// Sine.
extern const OpDef kSin = {
    .name = "sin",
    .formula_of = nonlinear_formula,
    .infer = same_float_type,
    .flops_per_point = 12,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      return {use.b.mul(use.gradients[0], use.b.emit("cos", {use.inputs[0]}))};
    },
    .scalar = unary_body<ScalarOp::kSin>,
};

// Cosine.
extern const OpDef kCos = {
    .name = "cos",
    .formula_of = nonlinear_formula,
    .infer = same_float_type,
    .flops_per_point = 12,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      return {use.b.neg(use.b.mul(use.gradients[0], use.b.emit("sin", {use.inputs[0]})))};
    },
    .scalar = unary_body<ScalarOp::kCos>,
};

// Tangent.
extern const OpDef kTan = {
    .name = "tan",
    .formula_of = nonlinear_formula,
    .infer = same_float_type,
    .flops_per_point = 16,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      return {use.b.mul(use.gradients[0], one_plus_square(use.b, use.outputs[0]))};
    },
    .scalar = unary_body<ScalarOp::kTan>,
    .precision = OperandPrecision::kWide,
};

// Arc sine.
extern const OpDef kAsin = {
    .name = "asin",
    .formula_of = nonlinear_formula,
    .infer = same_float_type,
    .flops_per_point = 16,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      return {use.b.mul(use.gradients[0], use.b.emit("rsqrt", {one_minus_square(use.b, use.inputs[0])}))};
    },
    .scalar = unary_body<ScalarOp::kAsin>,
    .precision = OperandPrecision::kWide,
};

// Arc cosine.
extern const OpDef kAcos = {
    .name = "acos",
    .formula_of = nonlinear_formula,
    .infer = same_float_type,
    .flops_per_point = 16,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      return {use.b.neg(use.b.mul(use.gradients[0], use.b.emit("rsqrt", {one_minus_square(use.b, use.inputs[0])})))};
    },
    .scalar = unary_body<ScalarOp::kAcos>,
    .precision = OperandPrecision::kWide,
};

// Arc tangent.
extern const OpDef kAtan = {
    .name = "atan",
    .formula_of = nonlinear_formula,
    .infer = same_float_type,
    .flops_per_point = 16,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      return {use.b.div(use.gradients[0], one_plus_square(use.b, use.inputs[0]))};
    },
    .scalar = unary_body<ScalarOp::kAtan>,
};

}  // namespace partita
