#include "ir/graph/builder.h"
#include "ir/ops/elementwise.h"

namespace partita {

// Square root.
extern const OpDef kSqrt = {
    .name = "sqrt",
    .formula_of = nonlinear_formula,
    .infer = same_float_type,
    .flops_per_point = 4,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      return {use.b.div(use.b.scale(use.gradients[0], 0.5), use.outputs[0])};
    },
    .scalar = unary_body<ScalarOp::kSqrt>,
};

// 1 / sqrt(x).
extern const OpDef kRsqrt = {
    .name = "rsqrt",
    .formula_of = nonlinear_formula,
    .infer = same_float_type,
    .flops_per_point = 6,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      Builder& b = use.b;
      ValueId y = use.outputs[0];
      return {b.mul(b.scale(use.gradients[0], -0.5), b.mul(y, b.mul(y, y)))};
    },
    .scalar = [](ScalarBuilder& s, const OpView&, const Scalars& x) -> Scalars {
      return {s.div(s.like(x[0], 1), s.unary(ScalarOp::kSqrt, x[0]))};
    },
    .precision = OperandPrecision::kWide,
};

}  // namespace partita
