#include "runtime/device/host_copies.h"

#include "base/status.h"
#include "runtime/program/program_check.h"

namespace partita::runtime {

absl::Status HostCopies::add(Device& device, const std::byte* at, int64_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  PARTITA_ASSIGN_OR_RETURN(int64_t mark, device.mark());
  copies_.push_back({at, at + bytes, mark});
  return absl::OkStatus();
}

absl::Status HostCopies::wait_for(Device& device, std::span<std::byte* const> buffers, const Step& step) {
  size_t done = 0;  // copies end in the order of the queue
  for (size_t c = 0; c < copies_.size(); ++c) {
    for (size_t k = 0; k < buffers.size(); ++k) {
      if (buffers[k] == nullptr) continue;
      const std::byte* end = buffers[k] + operand_bytes(step.operands[k]);
      if (buffers[k] < copies_[c].end && copies_[c].begin < end) done = c + 1;
    }
  }
  if (done == 0) return absl::OkStatus();
  PARTITA_RETURN_IF_ERROR(device.wait_for(copies_[done - 1].mark));
  copies_.erase(copies_.begin(), copies_.begin() + static_cast<int64_t>(done));
  return absl::OkStatus();
}

}  // namespace partita::runtime
