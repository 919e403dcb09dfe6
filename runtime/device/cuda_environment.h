// What CUDA's driver reads of the environment when it is first called: so this comes before every call of it, also of
// those that only ask where a GPU is.
#pragma once

#include <cstdlib>

namespace partita::runtime {

// What the environment says already stays. `several`: the run has more than one rank.
inline void prepare_cuda_environment(bool several) {
  // Queues between host and device. There are eight by default, and a pipeline's streams (steps, copies, a lane for
  // each group) are more: those that share one wait for each other.
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
  // A kernel that is loaded with its first launch may wait for all that runs, and a collective that runs for a rank
  // that is held up in the same way: where there are several, all kernels are loaded at the start.
  if (several) ::setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
}

}  // namespace partita::runtime
