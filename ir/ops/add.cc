#include "ir/graph/builder.h"
#include "ir/ops/elementwise.h"

namespace partita {

// a + b. Jointly linear: a partial sum passes only where both operands are partial.
extern const OpDef kAdd = {
    .name = "add",
    .min_inputs = 2,
    .max_inputs = 2,
    .formula_of = sum_formula,
    .infer = same_type,
    .flops_per_point = 1,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      return {use.b.sum_to(use.gradients[0], use.types[0].shape), use.b.sum_to(use.gradients[0], use.types[1].shape)};
    },
    .simpler = [](const OpUse& use) { return other_than(use, 0); },
    .scalar = [](ScalarBuilder& s, const OpView&, const Scalars& x) -> Scalars { return {s.add(x[0], x[1])}; },
};

}  // namespace partita
