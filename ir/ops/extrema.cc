#include "ir/graph/builder.h"
#include "ir/ops/elementwise.h"

namespace partita {
namespace {

// The operand that won takes the gradient; both take half of it where they are equal.
std::vector<ValueId> extremum_gradient(const OpUse& use, bool largest) {
  Builder& b = use.b;
  ValueId g = use.gradients[0], x = use.inputs[0], y = use.inputs[1];
  ValueId zero = b.scalar(use.types[0].dtype, 0), half = b.scalar(use.types[0].dtype, 0.5),
          one = b.scalar(use.types[0].dtype, 1);
  ValueId first = largest ? b.emit("lt", {y, x}) : b.emit("lt", {x, y});
  ValueId share = b.select(b.emit("eq", {x, y}), half, b.select(first, one, zero));
  return {b.sum_to(b.mul(g, share), use.types[0].shape), b.sum_to(b.mul(g, b.sub(one, share)), use.types[1].shape)};
}

}  // namespace

// The larger of two; NaN where either is NaN. Equal operands share the gradient, as in PyTorch.
extern const OpDef kMax = {
    .name = "max",
    .min_inputs = 2,
    .max_inputs = 2,
    .formula_of = nonlinear_formula,
    .infer = same_type,
    .flops_per_point = 1,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> { return extremum_gradient(use, true); },
    .scalar = binary_body<ScalarOp::kMax>,
};

// The smaller of two.
extern const OpDef kMin = {
    .name = "min",
    .min_inputs = 2,
    .max_inputs = 2,
    .formula_of = nonlinear_formula,
    .infer = same_type,
    .flops_per_point = 1,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> { return extremum_gradient(use, false); },
    .scalar = binary_body<ScalarOp::kMin>,
};

}  // namespace partita
