#include "ir/graph/builder.h"
#include "ir/ops/elementwise.h"

namespace partita {

// max(x, 0); gradient 0 at 0.
extern const OpDef kRelu = {
    .name = "relu",
    .formula_of = nonlinear_formula,
    .infer = same_number_type,
    .flops_per_point = 1,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      return {use.b.emit("relu_grad", {use.gradients[0], use.inputs[0]})};
    },
    .scalar = [](ScalarBuilder& s, const OpView&, const Scalars& x) -> Scalars {
      return {s.max(x[0], s.like(x[0], 0))};
    },
};

// (gradient of the result, x) -> gradient of x: g where x > 0 (x may also be the result).
extern const OpDef kReluGrad = {
    .name = "relu_grad",
    .min_inputs = 2,
    .max_inputs = 2,
    .formula_of = linear_formula,
    .infer = same_float_type,
    .flops_per_point = 1,
    .scalar = [](ScalarBuilder& s, const OpView&, const Scalars& x) -> Scalars {
      Scalar zero = s.like(x[1], 0);
      return {s.select(s.compare(ScalarOp::kLe, x[1], zero), zero, x[0])};
    },
};

}  // namespace partita
