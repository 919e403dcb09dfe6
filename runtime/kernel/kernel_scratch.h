// Memory that kernels use while they run. The kernels of a rank run one after the other, so they share one block, as
// large as the hungriest of them needs.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "base/status.h"
#include "runtime/kernel/region_memory.h"

namespace partita::runtime {

class KernelScratch {
 public:
  // While kernels are prepared: room for `bytes`.
  void reserve(int64_t bytes) { needed_ = std::max(needed_, bytes); }
  // Once all are prepared, before any runs. ResourceExhausted when there is not enough memory.
  absl::Status allocate() {
    if (memory_.bytes() >= needed_) return absl::OkStatus();
    PARTITA_ASSIGN_OR_RETURN(memory_, RegionMemory::allocate(needed_));
    return absl::OkStatus();
  }
  std::byte* data() const { return memory_.data(); }
  int64_t bytes() const { return needed_; }

 private:
  int64_t needed_ = 0;
  RegionMemory memory_;
};

// Divides the scratch memory among the needs of one kernel.
class ScratchLayout {
 public:
  // Offset of `bytes`, aligned to 64.
  int64_t take(int64_t bytes) {
    const int64_t at = end_;
    end_ += (bytes + 63) / 64 * 64;
    return at;
  }
  int64_t bytes() const { return end_; }

 private:
  int64_t end_ = 0;
};

}  // namespace partita::runtime
