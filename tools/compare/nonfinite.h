// The first value of a run that is not finite.
#pragma once

#include "absl/status/statusor.h"
#include "tools/compare/compare.h"

namespace partita {

// Takes a bundle's steps again up to the one that ends a run (options.ends), of options.steps at most; where there is
// none, up to the last. Each value of it and of some steps before is looked at, in the order of the serial program:
// those that ranks have in memory as they are, those inside of kernels as the reference evaluator makes them. The first
// that is nan where no operand is, or infinite where all operands are finite, and from which values that are not finite
// lead to the loss or the norm, is named with its node, ranks and box, its operands' ranges and the step's samples; or
// the state or the input, where the first step began with it. A mask's infinities are named where there is nothing
// else. Not found: `differs` is false. Errors as compare() has them.
absl::StatusOr<Comparison> find_nonfinite(const ComparedBundle& a, const CompareOptions& options);

}  // namespace partita
