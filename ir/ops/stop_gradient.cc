#include "ir/ops/elementwise.h"

namespace partita {

// The operand, as a constant to the gradient.
extern const OpDef kStopGradient = {
    .name = "stop_gradient",
    .formula_of = linear_formula,
    .infer = same_type,
    .gradient = [](const OpUse&) -> std::vector<ValueId> { return {kNoValue}; },
    .scalar = [](ScalarBuilder&, const OpView&, const Scalars& x) -> Scalars { return {x[0]}; },
};

}  // namespace partita
