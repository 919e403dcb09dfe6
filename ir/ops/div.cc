#include "ir/graph/builder.h"
#include "ir/ops/elementwise.h"

namespace partita {
namespace {

std::string div_formula(const OpView& use) { return elementwise_formula(use, is_float(use.dtype()) ? "~" : ""); }

}  // namespace

// a / b. Integers truncate towards zero (and give 0 for b = 0), so only the float form is linear in a.
extern const OpDef kDiv = {
    .name = "div",
    .min_inputs = 2,
    .max_inputs = 2,
    .formula_of = div_formula,
    .infer = same_number_type,
    .flops_per_point = 4,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      Builder& b = use.b;
      ValueId da = b.div(use.gradients[0], use.inputs[1]);
      ValueId db = b.neg(b.mul(da, use.outputs[0]));
      return {b.sum_to(da, use.types[0].shape), b.sum_to(db, use.types[1].shape)};
    },
    .scalar = binary_body<ScalarOp::kDiv>,
};

}  // namespace partita
