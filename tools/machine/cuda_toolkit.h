// Where this machine keeps the CUDA toolkit's programs.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace partita {

// ptxas, from PATH, CUDA_HOME, CUDA_PATH or /usr/local/cuda. FailedPrecondition says where it was looked for and how to
// get it.
absl::StatusOr<std::string> find_assembler();

}  // namespace partita
