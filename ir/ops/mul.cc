#include "ir/graph/builder.h"
#include "ir/ops/elementwise.h"

namespace partita {

extern const OpDef kMul = {
    .name = "mul",
    .min_inputs = 2,
    .max_inputs = 2,
    .formula_of = product_formula,
    .infer = same_type,
    .flops_per_point = 1,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      ValueId g = use.gradients[0];
      return {use.b.sum_to(use.b.mul(g, use.inputs[1]), use.types[0].shape),
              use.b.sum_to(use.b.mul(g, use.inputs[0]), use.types[1].shape)};
    },
    .simpler = [](const OpUse& use) { return other_than(use, 1); },
    .scalar = [](ScalarBuilder& s, const OpView&, const Scalars& x) -> Scalars { return {s.mul(x[0], x[1])}; },
};

}  // namespace partita
