// Programs run in a process of their own, which may crash or hang.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/program/program.h"

namespace partita {

struct TrialPrograms {
  std::vector<runtime::Program> training, evaluation;  // by stage; evaluation: none or after each step
  std::string initial;                                 // safetensors with first values
};

// Trains on synthetic samples; what each step measured and all states after the last are the result, to the bit.
// Aborted says how a run ended that did not: an error, a signal, or that it took longer than `seconds`. The caller has
// started no threads.
absl::StatusOr<std::string> trial_run(const TrialPrograms& programs, int steps, double seconds);

}  // namespace partita
