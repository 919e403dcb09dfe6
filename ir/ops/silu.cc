#include "ir/graph/builder.h"
#include "ir/ops/elementwise.h"

namespace partita {

// x sigmoid(x), also called swish.
extern const OpDef kSilu = {
    .name = "silu",
    .formula_of = nonlinear_formula,
    .infer = same_float_type,
    .flops_per_point = 13,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      return {use.b.emit("silu_grad", {use.gradients[0], use.inputs[0]})};
    },
    .scalar = [](ScalarBuilder& s, const OpView&, const Scalars& x) -> Scalars {
      return {s.mul(x[0], s.sigmoid(x[0]))};
    },
};

// (gradient of the result, x) -> gradient of x: g s (1 + x (1 - s)), s = sigmoid(x).
extern const OpDef kSiluGrad = {
    .name = "silu_grad",
    .min_inputs = 2,
    .max_inputs = 2,
    .formula_of = linear_formula,
    .infer = same_float_type,
    .flops_per_point = 16,
    .scalar = [](ScalarBuilder& s, const OpView&, const Scalars& x) -> Scalars {
      Scalar sigmoid = s.sigmoid(x[1]), one = s.like(x[1], 1);
      return {s.mul(x[0], s.mul(sigmoid, s.add(one, s.mul(x[1], s.sub(one, sigmoid)))))};
    },
};

}  // namespace partita
