// The host's side of kernels/device.h.
#pragma once

#include "runtime/cuda/cuda_device.h"

#define PARTITA_DEVICE_TYPES_ONLY
#include "runtime/cuda/kernels/device.h"
#undef PARTITA_DEVICE_TYPES_ONLY

namespace partita::runtime {

// Device memory of the scratch that a kernel finds once everything is prepared. Kernels of a rank run one after the
// other; within one, it comes after what cuBLASLt may use.
class DeviceScratch {
 public:
  static absl::StatusOr<std::shared_ptr<DeviceScratch>> make(CudaDevice& device, int64_t bytes) {
    device.reserve_scratch(kBegin + bytes);
    return std::make_shared<DeviceScratch>(device);
  }
  explicit DeviceScratch(CudaDevice& device) : device_(device) {}
  std::byte* data() const { return device_.scratch() + kBegin; }

 private:
  static constexpr int64_t kBegin = 32 << 20;  // cuBLASLt's workspace
  CudaDevice& device_;
};

}  // namespace partita::runtime
