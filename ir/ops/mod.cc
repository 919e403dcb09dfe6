#include "ir/graph/builder.h"
#include "ir/ops/elementwise.h"

namespace partita {

// Remainder of a / b with the sign of a (C's % and fmod); integers give 0 for b = 0.
extern const OpDef kMod = {
    .name = "mod",
    .min_inputs = 2,
    .max_inputs = 2,
    .formula_of = nonlinear_formula,
    .infer = same_number_type,
    .flops_per_point = 4,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      Builder& b = use.b;
      ValueId g = use.gradients[0], x = use.inputs[0], y = use.inputs[1];
      ValueId quotient =
          b.emit("div", {b.sub(x, use.outputs[0]), y});  // a / b rounded towards zero, up to the division's rounding
      return {b.sum_to(g, use.types[0].shape),
              b.sum_to(b.neg(b.mul(g, b.emit("round", {quotient}))), use.types[1].shape)};
    },
    .scalar = binary_body<ScalarOp::kMod>,
};

}  // namespace partita
