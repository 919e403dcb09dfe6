#include "runtime/communicate/reduce_rounds.h"

#include <algorithm>

namespace partita::runtime {

Slice slice_of(int64_t count, int parts, int index) {
  // Without count * index, which could overflow.
  const int64_t base = count / parts, extra = count % parts;
  return {base * index + std::min<int64_t>(index, extra), base + (index < extra ? 1 : 0)};
}

std::vector<Slice> even_slices(int64_t count, int parts) {
  std::vector<Slice> slices;
  for (int i = 0; i < parts; ++i) slices.push_back(slice_of(count, parts, i));
  return slices;
}

std::vector<Slice> equal_chunks(int64_t count, int parts) {
  std::vector<Slice> slices;
  for (int i = 0; i < parts; ++i) slices.push_back({count * i, count});
  return slices;
}

std::vector<Reduction> reductions_of(const CollectiveOp& op, int members, int mine) {
  const bool all = op.kind == CollectiveKind::kAllReduce;
  std::vector<Reduction> reductions;
  for (const CollectiveBuffers& b : buffers_of(op)) {
    auto* output = static_cast<std::byte*>(b.output);
    Reduction r{static_cast<const std::byte*>(b.input == nullptr ? b.output : b.input),
                all ? even_slices(b.count, members) : equal_chunks(b.count, members), output};
    if (all) r.output = output + r.of(mine).begin * dtype_size(op.dtype);
    reductions.push_back(std::move(r));
  }
  return reductions;
}

int64_t Run::length_of(const Slice& slice) const { return std::clamp<int64_t>(slice.length - begin, 0, length); }

std::vector<Round> rounds_of(const std::vector<Reduction>& buffers, int64_t piece) {
  std::vector<Round> rounds;
  int64_t room = 0;
  uint32_t number = 0;
  for (size_t b = 0; b < buffers.size(); ++b) {
    int64_t longest = 0;
    for (const Slice& slice : buffers[b].slices) longest = std::max(longest, slice.length);
    for (int64_t begin = 0; begin < longest;) {
      if (room == 0) {
        rounds.emplace_back();
        room = piece;
      }
      const int64_t length = std::min(room, longest - begin);
      rounds.back().push_back({b, begin, length, piece - room, number++});
      begin += length;
      room -= length;
    }
  }
  return rounds;
}

}  // namespace partita::runtime
