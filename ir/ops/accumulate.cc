#include "ir/ops/elementwise.h"

namespace partita {

// (what earlier micro-batches summed to, this micro-batch's term) -> their sum. The micro-batches that it sums over are
// an implicit factor of every value that depends on the data: splitting them over a mesh axis leaves a partial sum here
// and nowhere else.
extern const OpDef kAccumulate = {
    .name = "accumulate",
    .min_inputs = 2,
    .max_inputs = 2,
    .formula_of = sum_formula,
    .infer = same_type,
    .flops_per_point = 1,
    .scalar = [](ScalarBuilder& s, const OpView&, const Scalars& x) -> Scalars { return {s.add(x[0], x[1])}; },
    .sums_micro_batches = true,
};

}  // namespace partita
