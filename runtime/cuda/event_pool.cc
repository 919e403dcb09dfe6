#include "runtime/cuda/event_pool.h"

#include "runtime/cuda/cuda_device.h"

namespace partita::runtime {

absl::StatusOr<cudaEvent_t> EventPool::take() {
  cudaEvent_t event = nullptr;
  if (!spare_.empty()) {
    event = spare_.back();
    spare_.pop_back();
  } else if (cudaError_t e = cudaEventCreateWithFlags(&event, flags_); e != cudaSuccess) {
    return cuda_error("cudaEventCreate", e);
  }
  return event;
}

void EventPool::close() {
  for (cudaEvent_t event : spare_) cudaEventDestroy(event);
  spare_.clear();
}

}  // namespace partita::runtime
