#include "ir/graph/builder.h"
#include "ir/ops/elementwise.h"

namespace partita {

// a - b.
extern const OpDef kSub = {
    .name = "sub",
    .min_inputs = 2,
    .max_inputs = 2,
    .formula_of = sum_formula,
    .infer = same_type,
    .flops_per_point = 1,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      return {use.b.sum_to(use.gradients[0], use.types[0].shape),
              use.b.neg(use.b.sum_to(use.gradients[0], use.types[1].shape))};
    },
    .scalar = binary_body<ScalarOp::kSub>,
};

}  // namespace partita
