// Nests to GPU code: NVPTX through LLVM, then ptxas.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "codegen/llvm/object_code.h"

namespace partita {

struct DeviceTarget {
  std::string architecture = "sm_90";
  std::string assembler;  // the ptxas to run; empty: no cubin
};

// What ptxas says of a kernel.
struct DeviceKernel {
  std::string name;
  int registers = 0;
  int64_t spilled_bytes = 0;  // stored and loaded again
};

struct DeviceCode {
  std::vector<uint8_t> cubin;  // for the target's architecture
  std::string ptx;             // for newer devices
  std::vector<DeviceKernel> kernels;
};

// InvalidArgument for an architecture that is not "sm_" and a number from 75 on; FailedPrecondition where ptxas cannot
// be run or refuses the architecture.
absl::StatusOr<DeviceCode> compile_device_nests(std::span<const NamedNest> nests, const DeviceTarget& target);

// The PTX alone.
absl::StatusOr<std::string> device_text(std::span<const NamedNest> nests, const std::string& architecture);

}  // namespace partita
