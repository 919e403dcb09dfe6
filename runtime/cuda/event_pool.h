// CUDA events that are used again.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "absl/status/statusor.h"

namespace partita::runtime {

class EventPool {
 public:
  explicit EventPool(unsigned flags = cudaEventDisableTiming) : flags_(flags) {}

  absl::StatusOr<cudaEvent_t> take();
  void give_back(cudaEvent_t event) { spare_.push_back(event); }
  // Destroys what was given back, while the device is still there.
  void close();

 private:
  unsigned flags_;
  std::vector<cudaEvent_t> spare_;
};

}  // namespace partita::runtime
