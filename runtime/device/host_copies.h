// Copies between a device and the host's memory that may still be under way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "runtime/device/device.h"
#include "runtime/program/program.h"

namespace partita::runtime {

class HostCopies {
 public:
  // A copy that was just queued reads or writes these bytes of the host's.
  absl::Status add(Device& device, const std::byte* at, int64_t bytes);
  // Before the host runs a step: waits for the copies from and to its operands.
  absl::Status wait_for(Device& device, std::span<std::byte* const> buffers, const Step& step);
  // All of them have been waited for.
  void clear() { copies_.clear(); }

 private:
  struct Copy {
    const std::byte *begin = nullptr, *end = nullptr;
    int64_t mark = 0;  // of the device's queue
  };
  std::vector<Copy> copies_;  // as they were queued
};

}  // namespace partita::runtime
