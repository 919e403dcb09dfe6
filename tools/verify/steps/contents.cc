#include "tools/verify/steps/contents.h"

#include <algorithm>

namespace partita::verifier {

Range range_of(const runtime::Operand& operand, int64_t slot) {
  int64_t elements = 1;
  for (int64_t n : operand.shape) elements *= n;
  int64_t begin = operand.address.in_slot(slot);
  int64_t bytes = operand.dtype == DType::kInvalid ? 0 : elements * dtype_size(operand.dtype);
  return {operand.address.region, begin, begin + bytes};
}

std::optional<Content> Memory::at(const Range& range) const {
  const auto& blocks = regions_[static_cast<int>(range.region)];
  auto it = blocks.find(range.begin);
  if (it == blocks.end() || it->second.end != range.end) return std::nullopt;
  return it->second.content;
}

void Memory::write(const Range& range, const Content& content) {
  if (range.empty()) return;
  auto& blocks = regions_[static_cast<int>(range.region)];
  auto it = blocks.lower_bound(range.begin);
  if (it != blocks.begin() && std::prev(it)->second.end > range.begin) --it;
  while (it != blocks.end() && it->first < range.end) it = blocks.erase(it);
  blocks[range.begin] = {range.end, content};
}

void Memory::start(int operation, std::vector<Range> reads, std::vector<Range> writes) {
  flights_.push_back({operation, std::move(reads), std::move(writes)});
}

bool Memory::finish(int operation) {
  return std::erase_if(flights_, [&](const Flight& f) { return f.operation == operation; }) > 0;
}

int Memory::disturbed(const Range& range, bool write) const {
  auto hits = [&](const std::vector<Range>& ranges) {
    return std::any_of(ranges.begin(), ranges.end(), [&](const Range& r) { return r.overlaps(range); });
  };
  for (const Flight& f : flights_) {
    if (hits(f.writes) || (write && hits(f.reads))) return f.operation;
  }
  return -1;
}

}  // namespace partita::verifier
