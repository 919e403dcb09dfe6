// Where a program's values lie: in the host's memory or a device's, or in another executor's.
#include <omp.h>

#include <algorithm>
#include <cstring>
#include <tuple>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/execute/executor.h"
#include "runtime/program/placement.h"
#include "runtime/program/program_check.h"
#include "runtime/program/sides.h"

namespace partita::runtime {
namespace {

constexpr int64_t kSmallCopy = 512 << 10;  // bytes that one thread copies as fast as all

void copy_bytes(std::byte* to, const std::byte* from, int64_t bytes, int threads) {
  if (to == from || bytes == 0) return;
  if (bytes < kSmallCopy || threads == 1) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return;
  }
#pragma omp parallel
  {
    const int64_t n = omp_get_num_threads(), t = omp_get_thread_num(), lines = (bytes + 63) / 64;
    const int64_t begin = lines * t / n * 64, end = std::min(lines * (t + 1) / n * 64, bytes);
    if (end > begin) std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin));
  }
}

}  // namespace

// Regions of states where these lie alike in both, sums of the step among them; working memory that is large enough.
void Executor::share(const Executor& owner) {
  const auto& all = owner.program().states;
  const auto lies_alike = [&](const ProgramState& s) {
    return std::any_of(all.begin(), all.end(), [&](const ProgramState& o) {
      return o.name == s.name && o.operand.dtype == s.operand.dtype && o.operand.shape == s.operand.shape &&
             o.operand.address.region == s.operand.address.region &&
             o.operand.address.offset == s.operand.address.offset &&
             box_offset(o.placement, owner.coordinates()) == box_offset(s.placement, coordinates_);
    });
  };
  const bool states = std::all_of(program().states.begin(), program().states.end(), lies_alike);
  for (const Region region : {Region::kState, Region::kHostState, Region::kArena, Region::kHostArena}) {
    const int r = static_cast<int>(region);
    const bool of_states = region == Region::kState || region == Region::kHostState;
    shared_[r] = (states || !of_states) && program().region_bytes[r] <= owner.program().region_bytes[r];
    if (shared_[r]) on_host_[r] = owner.on_host_[r], on_device_[r] = owner.on_device_[r];
  }
}

absl::Status Executor::allocate(const Executor* shares) {
  if (shares != nullptr) share(*shares);
  for (int r = 0; r < kRegions; ++r) {
    const int64_t bytes = program().region_bytes[r];
    if (shared_[r]) continue;
    if (static_cast<Region>(r) == Region::kConstant) {
      on_host_[r] = loaded_->constants.data();
    } else if (device_ != nullptr && in_host_memory(static_cast<Region>(r))) {
      PARTITA_ASSIGN_OR_RETURN(on_host_[r], device_->allocate_on_host(bytes));
    } else {
      PARTITA_ASSIGN_OR_RETURN(regions_[r],
                               device_ != nullptr ? RegionMemory::reserve(bytes) : RegionMemory::allocate(bytes));
      on_host_[r] = regions_[r].data();
    }
  }
  if (device_ != nullptr) PARTITA_RETURN_IF_ERROR(allocate_on_device());
  staged_.assign(static_cast<size_t>(program().slots), -1);
  return absl::OkStatus();
}

// All of its regions in one block.
absl::Status Executor::allocate_on_device() {
  int64_t begin[kRegions], end = 0;
  for (int r = 0; r < kRegions; ++r) {
    begin[r] = end;
    if (!in_host_memory(static_cast<Region>(r)) && !shared_[r]) end += (program().region_bytes[r] + 255) / 256 * 256;
  }
  PARTITA_ASSIGN_OR_RETURN(std::byte * block, device_->allocate(end));
  for (int r = 0; r < kRegions; ++r) {
    if (!shared_[r]) on_device_[r] = block + begin[r];
  }
  return device_->write(on_device_[static_cast<int>(Region::kConstant)],
                        {loaded_->constants.data(), static_cast<size_t>(loaded_->constants.bytes())});
}

absl::Status Executor::copy(std::byte* to, const std::byte* from, int64_t bytes) const {
  if (device_ != nullptr) return to == from || bytes == 0 ? absl::OkStatus() : device_->copy(to, from, bytes);
  copy_bytes(to, from, bytes, threads_);
  return absl::OkStatus();
}

absl::Status Executor::copy_between(const BoundStep& step, std::byte* const* buffers) {
  PARTITA_RETURN_IF_ERROR(copy(buffers[1], buffers[0], step.bytes));
  for (size_t k = 0; device_ != nullptr && k < 2; ++k) {
    if (!on_device(step.step->operands[k])) PARTITA_RETURN_IF_ERROR(host_copies_.add(*device_, buffers[k], step.bytes));
  }
  return absl::OkStatus();
}

// States that both programs have lie alike: the second plan was made from the first.
absl::Status Executor::borrow_states(const Executor& owner) {
  for (const ProgramState& s : program().states) {
    if (s.kind == StateKind::kAccumulator) continue;
    const auto& all = owner.program().states;
    auto found = std::find_if(all.begin(), all.end(), [&](const ProgramState& o) { return o.name == s.name; });
    if (found == all.end() || found->operand.dtype != s.operand.dtype || found->operand.shape != s.operand.shape ||
        box_offset(found->placement, owner.coordinates()) != box_offset(s.placement, coordinates_)) {
      return absl::FailedPreconditionError(
          cat("a program that goes on with the states of another holds ", quote(s.name), " in another way"));
    }
    borrowed_.push_back({s.operand.address.region, s.operand.address.offset, operand_bytes(s.operand),
                         owner.memory(found->operand).data(), owner.address(found->operand, 0)});
  }
  std::sort(borrowed_.begin(), borrowed_.end(), [](const Borrowed& a, const Borrowed& b) {
    return std::tie(a.region, a.offset) < std::tie(b.region, b.offset);
  });
  return absl::OkStatus();
}

// Null where the address is none of a borrowed state's.
std::byte* Executor::borrowed(const Address& a, bool on_device) const {
  auto after = std::upper_bound(borrowed_.begin(), borrowed_.end(), a, [](const Address& at, const Borrowed& b) {
    return std::tie(at.region, at.offset) < std::tie(b.region, b.offset);
  });
  if (after == borrowed_.begin()) return nullptr;
  const Borrowed& b = *(after - 1);
  if (a.region != b.region || a.offset - b.offset >= std::max<int64_t>(b.bytes, 1)) return nullptr;
  return (on_device ? b.on_device : b.memory) + (a.offset - b.offset);
}

std::span<std::byte> Executor::memory(const Operand& operand, int64_t slot) const {
  const Address& a = operand.address;
  const size_t bytes = static_cast<size_t>(operand_bytes(operand));
  if (std::byte* state = borrowed(a, false)) return {state, bytes};
  return {on_host_[static_cast<int>(a.region)] + a.in_slot(slot), bytes};
}

std::byte* Executor::address(const Operand& operand, int64_t slot) const {
  if (!on_device(operand)) return memory(operand, slot).data();
  const Address& a = operand.address;
  if (std::byte* state = borrowed(a, true)) return state;
  return on_device_[static_cast<int>(a.region)] + a.in_slot(slot);
}

absl::Status Executor::fetch(const Operand& operand, int64_t slot) const {
  return !on_device(operand) ? absl::OkStatus() : device_->read(memory(operand, slot), address(operand, slot));
}
absl::Status Executor::put(const Operand& operand, int64_t slot) const {
  return !on_device(operand) ? absl::OkStatus() : device_->write(address(operand, slot), memory(operand, slot));
}
absl::Status Executor::put(const Operand& operand, int64_t slot, std::span<const std::byte> bytes) const {
  const std::span<std::byte> own = memory(operand, slot);
  PARTITA_CHECK(own.size() == bytes.size(), "an operand's size");
  if (on_device(operand)) return device_->write(address(operand, slot), bytes);
  std::memcpy(own.data(), bytes.data(), bytes.size());
  return absl::OkStatus();
}
absl::Status Executor::lend(const Operand& input, int64_t slot, std::span<const std::byte> bytes) {
  if (device_ != nullptr || observer_ != nullptr) return put(input, slot, bytes);
  PARTITA_CHECK(static_cast<int64_t>(bytes.size()) == operand_bytes(input), "an operand's size");
  const auto [at, is_new] = input_buffers_.try_emplace({input.address.offset, slot});
  if (is_new) at->second = input_buffers(input, slot);
  // No step writes an input.
  std::byte* const begin = const_cast<std::byte*>(bytes.data());
  for (const InputBuffer& b : at->second) buffers_[b.buffer] = begin + b.from_begin;
  return absl::OkStatus();
}
std::vector<Executor::InputBuffer> Executor::input_buffers(const Operand& input, int64_t slot) const {
  std::vector<InputBuffer> found;
  for (const std::vector<BoundStep>& steps : segments_) {
    for (const BoundStep& bound : steps) {
      if (bound.slot_buffers == 0 && slot > 0) continue;
      for (size_t k = 0; k < bound.step->operands.size(); ++k) {
        const Operand& o = bound.step->operands[k];
        if (!begins_in(o, input)) continue;
        found.push_back({bound.buffers + static_cast<size_t>(slot) * bound.slot_buffers + k,
                         o.address.offset - input.address.offset});
      }
    }
  }
  return found;
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
