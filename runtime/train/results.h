// What a run leaves behind besides checkpoints and metrics.
#pragma once

#include <initializer_list>
#include <string>

#include "absl/status/status.h"
#include "runtime/communicate/collective.h"
#include "runtime/execute/executor.h"
#include "runtime/record/flight_recorder.h"

namespace partita::runtime {

// What is written at the end has to have a place before hours are spent on it; an empty path is none.
absl::Status check_targets(std::initializer_list<std::string> paths);
// Collective: the last step's outputs "grad/NAME", as NAME. FailedPrecondition where the program keeps none.
absl::Status save_gradients(const Executor& executor, Communicator* communicator, const std::string& path);
// Collective: parameters and running statistics; `optimizer`: its states and the step too. The recorder is told how it
// gets on.
absl::Status save_parameters(const Executor& executor, Communicator* communicator, const std::string& path,
                             bool optimizer, FlightRecorder* recorder);
// A rank's Chrome trace, where it was profiled and `path` is not empty; `tables`: rank 0's to stderr.
absl::Status write_profile(const Executor& executor, const std::string& path, bool tables);

}  // namespace partita::runtime
