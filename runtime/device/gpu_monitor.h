// What NVIDIA's management library (NVML, a part of the driver) says of the GPUs of this machine.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace partita::runtime {

struct GpuReading {
  std::string name;
  std::optional<int> architecture;  // 90 for sm_90
  bool nvlink = false;              // some of its links to other GPUs are up
  // Unset where the GPU does not tell. Used memory is that of all processes, and the driver's own.
  std::optional<int64_t> memory_bytes, used_bytes;
  std::optional<int> sm_mhz, most_sm_mhz, memory_mhz, celsius;
  std::optional<double> watts;

  // The parts that change, as metrics: "gpu_used_bytes", "gpu_sm_mhz", "gpu_memory_mhz", "gpu_watts", "gpu_celsius".
  std::vector<std::pair<std::string, double>> metrics() const;
  // "NVIDIA H100 80GB HBM3: 1.2 of 85.5 GB used, SM at 1980 of 1980 MHz, memory at 2619 MHz, 120 W, 35 C"
  std::string text() const;
};

// One of the process, from any thread.
class GpuMonitor {
 public:
  // NotFound where there is no such library, FailedPrecondition where it does not work, with the reason.
  static absl::StatusOr<const GpuMonitor*> open();

  absl::StatusOr<int> count() const;
  absl::StatusOr<GpuReading> read(int number) const;
  // By the 16 bytes that CUDA knows it by.
  absl::StatusOr<GpuReading> read(std::span<const char, 16> uuid) const;

 private:
  struct Functions;
  explicit GpuMonitor(const Functions& functions) : f_(functions) {}
  absl::StatusOr<GpuReading> read_device(void* device) const;
  absl::Status check(int code, const char* call) const;
  const Functions& f_;
};

}  // namespace partita::runtime
