#include "ir/graph/builder.h"
#include "ir/ops/elementwise.h"

namespace partita {

// 1 / (1 + e^-x).
extern const OpDef kSigmoid = {
    .name = "sigmoid",
    .formula_of = nonlinear_formula,
    .infer = same_float_type,
    .flops_per_point = 12,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      Builder& b = use.b;
      ValueId y = use.outputs[0];
      return {b.mul(use.gradients[0], b.mul(y, b.sub(b.scalar(b.dtype(y), 1), y)))};
    },
    .scalar = [](ScalarBuilder& s, const OpView&, const Scalars& x) -> Scalars { return {s.sigmoid(x[0])}; },
};

}  // namespace partita
