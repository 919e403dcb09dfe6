// The first value of a run that is not finite.
#pragma once

#include "absl/status/statusor.h"
#include "tools/compare/compare.h"

namespace partita {

// Runs a bundle's steps [first, end), and looks at each value of each step, in the order of the serial program: those
// that ranks have in memory as they are, those inside of kernels as the reference evaluator makes them. The first that
// is nan where no operand is, or infinite where all operands are finite, is named with its node, ranks and box, its
// operands' ranges and the step's samples. What is infinite in a step whose loss is finite (a mask's logarithm of zero)
// is left out. Not found: `differs` is false. Errors as compare() has them.
absl::StatusOr<Comparison> find_nonfinite(const ComparedBundle& a, int64_t first, int64_t end);

}  // namespace partita
