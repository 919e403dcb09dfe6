#include <numbers>

#include "ir/graph/builder.h"
#include "ir/ops/elementwise.h"

namespace partita {

// The error function; derivative 2 / sqrt(pi) e^(-x^2).
extern const OpDef kErf = {
    .name = "erf",
    .formula_of = nonlinear_formula,
    .infer = same_float_type,
    .flops_per_point = 16,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      Builder& b = use.b;
      ValueId x = use.inputs[0];
      ValueId slope = b.scale(b.emit("exp", {b.neg(b.mul(x, x))}), 2 * std::numbers::inv_sqrtpi);
      return {b.mul(use.gradients[0], slope)};
    },
    .scalar = unary_body<ScalarOp::kErf>,
};

}  // namespace partita
