// The numeric half of `partita verify`: all ranks of a bundle as threads of one process, against the serial program
// compiled for one rank and, where that takes less than a minute, by the reference evaluator, on the same samples and
// first values.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "runtime/train/trainer.h"
#include "tools/verify/certificate.h"

namespace partita {

struct NumericOptions {
  runtime::TrainOptions train;  // steps, data, first values
  std::string folder;           // that exists, for what the runs leave
  double tolerance = 1e-5;      // relative, of losses and of each tensor's norm; at least the rounding of a 16-bit type
                                // that the program computes in
};

// Loss, learning rate and norm of the gradients of every step, evaluation losses, the first step's gradients where the
// program keeps them, and after the last step every parameter, statistic and optimizer state, against the length of its
// update. A tensor may differ by more than the tolerance by what rounding does to it: in the serial program compiled
// without fusion, from other first values, or rounded anew by the reference evaluator (numeric_runs.h).
// Aborted names what differs most; FailedPrecondition where they skip different steps (fp16); the data's and the
// runtime's own errors pass through. Of a bundle with compressed gradients the first loss alone is held to this.
// Synthetic samples on which they differ are drawn anew, twice: where both draws agree, a value of the first lies at a
// kink.
absl::StatusOr<verifier::NumericVerdict> check_numeric(const verifier::Bundle& bundle, const NumericOptions& options);
// The same, and each kernel by itself (trials/kernel_trials.h), in a process of its own that can harm nothing
// (confined.h), with a folder of its own. Aborted where it crashes.
absl::StatusOr<verifier::NumericVerdict> check_numeric_apart(const verifier::Bundle& bundle, NumericOptions options);

}  // namespace partita
