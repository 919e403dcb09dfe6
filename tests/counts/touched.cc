#include "tests/counts/touched.h"

#include <algorithm>
#include <bit>

namespace partita::counts {

void Use::add(const Use& o) {
  issued += o.issued;
  of_blocks += o.of_blocks;
  far += o.far;
  bytes += o.bytes;
}

// Operands that overlap are one.
Touched::Touched(std::vector<Extent> extents, int64_t near_bytes) : near_(near_bytes / static_cast<int64_t>(kSector)) {
  std::sort(extents.begin(), extents.end(), [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
  for (const Extent& e : extents) {
    if (e.bytes == 0) continue;
    if (!uses_.empty() && e.begin < uses_.back().extent.begin + uses_.back().extent.bytes) {
      Extent& last = uses_.back().extent;
      last.bytes = std::max(last.bytes, e.begin + e.bytes - last.begin);
      last.is_input = last.is_input || e.is_input;
      last.is_output = last.is_output || e.is_output;
    } else {
      uses_.push_back({.extent = e});
    }
  }
  uses_.emplace_back();
  beside_.resize(uses_.size()), shared_.resize(uses_.size()), read_by_neighbours_.resize(uses_.size());
}

size_t Touched::find(uint64_t address) const {
  const auto after = std::upper_bound(uses_.begin(), uses_.end() - 1, address,
                                      [](uint64_t at, const ExtentUse& u) { return at < u.extent.begin; });
  if (after == uses_.begin()) return uses_.size() - 1;
  const Extent& e = (after - 1)->extent;
  return address < e.begin + e.bytes ? static_cast<size_t>(after - uses_.begin() - 1) : uses_.size() - 1;
}

void Touched::weigh(std::unordered_map<uint32_t, double> weights) {
  end_block();
  weights_ = std::move(weights);
}

void Touched::access(uint32_t block, const std::array<uint64_t, ptx::kLanes>& addresses, uint32_t lanes, int bytes,
                     bool reads) {
  if (block_ != block) end_block();
  block_ = block;
  std::array<uint64_t, ptx::kLanes> seen;
  size_t count = 0;
  for (uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const uint64_t address = addresses[static_cast<size_t>(std::countr_zero(rest))], sector = address / 32;
    const auto mask = static_cast<uint32_t>(((uint64_t{1} << bytes) - 1) << (address % 32));
    Sector& s = of_block_[sector];
    (reads ? s.read : s.written) |= mask;
    if (std::find(seen.begin(), seen.begin() + static_cast<std::ptrdiff_t>(count), sector) !=
        seen.begin() + static_cast<std::ptrdiff_t>(count))
      continue;
    seen[count++] = sector;
    ++now_;
    if (reads && s.reads > 0 && now_ - s.last > near_) ++s.far_reads;
    ++(reads ? s.reads : s.writes);
    s.last = now_;
  }
}

void Touched::end_block() {
  if (block_ < 0) return;
  const auto at = weights_.find(static_cast<uint32_t>(block_));
  const double weight = at == weights_.end() ? 1 : at->second;
  for (const auto& [sector, s] : of_block_) {
    const size_t k = find(sector * 32);
    ExtentUse& use = uses_[k];
    if (s.reads > 0) {
      use.reads.add({weight * s.reads, weight, weight * s.far_reads, weight * std::popcount(s.read)});
      auto& [last, readers] = readers_.try_emplace(sector, -1, 0).first->second;
      if (weights_.count(static_cast<uint32_t>(block_ - 1)) > 0) {
        ++beside_[k];
        read_by_neighbours_[k] += last == block_ - 1;
      }
      last = block_;
      shared_[k] += ++readers == 4;
    }
    if (s.writes > 0) use.writes.add({weight * s.writes, weight, 0, weight * std::popcount(s.written)});
  }
  touched_ += weight * static_cast<double>(of_block_.size());
  blocks_ += weight;
  of_block_.clear();
  block_ = -1, now_ = 0;
}

void Touched::finish() {
  end_block();
  readers_.clear();
  for (size_t k = 0; k < uses_.size(); ++k) {
    uses_[k].neighbours_share = read_by_neighbours_[k] > beside_[k] / 4;
    uses_[k].is_shared = shared_[k] > 0;
  }
}

void Touched::stream(uint64_t begin, uint64_t bytes, bool reads) {
  ExtentUse& use = uses_[find(begin)];
  const double n = static_cast<double>(bytes);
  (reads ? use.reads : use.writes).add({n / kSector, n / kSector, 0, n});
}

}  // namespace partita::counts
