// Where a program's values lie: in the host's memory or a device's, or in another executor's.
#include <algorithm>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/executor.h"
#include "runtime/placement.h"
#include "runtime/program_check.h"

namespace partita::runtime {

absl::Status Executor::allocate() {
  for (int r = 0; r < kRegions; ++r) {
    if (static_cast<Region>(r) == Region::kConstant) continue;
    const int64_t bytes = program().region_bytes[r];
    PARTITA_ASSIGN_OR_RETURN(regions_[r],
                             device_ != nullptr ? RegionMemory::reserve(bytes) : RegionMemory::allocate(bytes));
  }
  if (device_ != nullptr) PARTITA_RETURN_IF_ERROR(allocate_on_device());
  staged_.assign(static_cast<size_t>(program().slots), -1);
  return absl::OkStatus();
}

// All regions in one block.
absl::Status Executor::allocate_on_device() {
  int64_t begin[kRegions], end = 0;
  for (int r = 0; r < kRegions; ++r) {
    begin[r] = end;
    end += (program().region_bytes[r] + 255) / 256 * 256;
  }
  PARTITA_ASSIGN_OR_RETURN(std::byte * block, device_->allocate(end));
  for (int r = 0; r < kRegions; ++r) on_device_[r] = block + begin[r];
  return device_->write(on_device_[static_cast<int>(Region::kConstant)],
                        {loaded_->constants.data(), static_cast<size_t>(loaded_->constants.bytes())});
}

// States that both programs have lie alike: the second plan was made from the first.
absl::Status Executor::borrow_states(const Executor& owner) {
  for (const ProgramState& s : program().states) {
    if (s.kind == "accumulator") continue;
    const auto& all = owner.program().states;
    auto found = std::find_if(all.begin(), all.end(), [&](const ProgramState& o) { return o.name == s.name; });
    if (found == all.end() || found->operand.dtype != s.operand.dtype || found->operand.shape != s.operand.shape ||
        box_offset(found->placement, owner.coordinates()) != box_offset(s.placement, coordinates_)) {
      return absl::FailedPreconditionError(
          cat("the evaluation program holds ", quote(s.name), " in another way than the training program"));
    }
    borrowed_.push_back({s.operand.address.offset, operand_bytes(s.operand), owner.memory(found->operand).data(),
                         owner.address(found->operand, 0)});
  }
  std::sort(borrowed_.begin(), borrowed_.end(),
            [](const Borrowed& a, const Borrowed& b) { return a.offset < b.offset; });
  return absl::OkStatus();
}

// Null where the address is none of a borrowed state's.
std::byte* Executor::borrowed(const Address& a, bool on_device) const {
  if (borrowed_.empty() || a.region != Region::kState) return nullptr;
  auto after = std::upper_bound(borrowed_.begin(), borrowed_.end(), a.offset,
                                [](int64_t offset, const Borrowed& b) { return offset < b.offset; });
  if (after == borrowed_.begin()) return nullptr;
  const Borrowed& b = *(after - 1);
  if (a.offset - b.offset >= std::max<int64_t>(b.bytes, 1)) return nullptr;
  return (on_device ? b.on_device : b.memory) + (a.offset - b.offset);
}

std::span<std::byte> Executor::memory(const Operand& operand, int64_t slot) const {
  const Address& a = operand.address;
  const size_t bytes = static_cast<size_t>(operand_bytes(operand));
  if (std::byte* state = borrowed(a, false)) return {state, bytes};
  const RegionMemory& region =
      a.region == Region::kConstant ? loaded_->constants : regions_[static_cast<int>(a.region)];
  return {region.data() + a.offset + slot * a.slot_stride, bytes};
}

std::byte* Executor::address(const Operand& operand, int64_t slot) const {
  if (device_ == nullptr) return memory(operand, slot).data();
  const Address& a = operand.address;
  if (std::byte* state = borrowed(a, true)) return state;
  return on_device_[static_cast<int>(a.region)] + a.offset + slot * a.slot_stride;
}

absl::Status Executor::fetch(const Operand& operand, int64_t slot) const {
  return device_ == nullptr ? absl::OkStatus() : device_->read(memory(operand, slot), address(operand, slot));
}
absl::Status Executor::put(const Operand& operand, int64_t slot) const {
  return device_ == nullptr ? absl::OkStatus() : device_->write(address(operand, slot), memory(operand, slot));
}
absl::Status Executor::fetch_states() const {
  for (const ProgramState& s : program().states) PARTITA_RETURN_IF_ERROR(fetch(s.operand));
  return absl::OkStatus();
}
absl::Status Executor::put_states() const {
  for (const ProgramState& s : program().states) PARTITA_RETURN_IF_ERROR(put(s.operand));
  return absl::OkStatus();
}

}  // namespace partita::runtime
