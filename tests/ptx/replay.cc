#include "tests/ptx/replay.h"

#include <algorithm>
#include <cstring>

namespace partita::ptx {

void Replay::add(uint64_t address, int bytes, const Suspect& s, const absl::Status& what) {
  if (first_.ok()) first_ = what;
  for (uint64_t byte = address; byte < address + static_cast<uint64_t>(bytes); ++byte) {
    std::vector<Suspect>& all = suspects_[byte];
    if (all.empty() || all.back().moment != s.moment || all.back().is_write != s.is_write) all.push_back(s);
  }
}

void Replay::suspect_before(uint64_t address, int bytes, uint32_t block, const Moment& writer,
                            const WarpClock& of_writer, const absl::Status& what) {
  add(address, bytes, {block, writer, true, of_writer}, what);
}
void Replay::suspect(uint64_t address, int bytes, uint32_t block, const Moment& reader, const absl::Status& what) {
  add(address, bytes, {block, reader, false, {}}, what);
}

bool Replay::is_suspect(uint64_t address, int bytes, const Moment& me, const WarpClock& clock, bool shared) const {
  for (uint64_t byte = address; byte < address + static_cast<uint64_t>(bytes); ++byte) {
    auto at = suspects_.find(byte);
    if (at == suspects_.end()) continue;
    for (const Suspect& s : at->second) {
      if (shared ? s.block != me.block() : s.block != kAnyBlock) continue;
      if (s.is_write ? !clock.has_seen(s.moment, me) && !s.clock.has_seen(me, s.moment) : s.moment == me) return true;
    }
  }
  return false;
}

void Replay::remember(const void* at, int bytes) {
  Old old{const_cast<void*>(at), bytes, {}};
  std::memcpy(old.held.data(), at, static_cast<size_t>(bytes));
  old_.push_back(old);
}

Replay::Bytes Replay::written() const {
  Bytes all;
  for (const Old& old : old_) {
    const auto* bytes = static_cast<const std::byte*>(old.at);
    for (int k = 0; k < old.bytes; ++k) all.emplace_back(reinterpret_cast<uint64_t>(bytes + k), bytes[k]);
  }
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  return all;
}

void Replay::undo() {
  for (size_t k = old_.size(); k-- > 0;)
    std::memcpy(old_[k].at, old_[k].held.data(), static_cast<size_t>(old_[k].bytes));
  old_.clear();
}

}  // namespace partita::ptx
