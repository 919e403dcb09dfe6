#include "ir/ops/elementwise.h"

namespace partita {

// The operand as it is now, in memory of its own: a later update of it leaves the copy as it was (PipeDream's weight
// stashing). It is never computed again.
extern const OpDef kStash = {
    .name = "stash",
    .min_inputs = 1,
    .max_inputs = 1,
    .formula_of = linear_formula,
    .infer = same_type,
    .scalar = [](ScalarBuilder&, const OpView&, const Scalars& x) -> Scalars { return {x[0]}; },
};

}  // namespace partita
