#include "codegen/steps/arena.h"

#include <algorithm>
#include <numeric>

namespace partita {
namespace {

bool is_apart(const Lifetime& a, const Lifetime& b) {
  return (b.once ? a.last : a.death) < b.birth || (a.once ? b.last : b.death) < a.birth;
}

// The tightest gap that is free during the buffer's whole life, or the end.
ArenaLayout place(std::span<const Lifetime> buffers, const std::vector<size_t>& order) {
  ArenaLayout layout{std::vector<int64_t>(buffers.size(), 0), 0};
  std::vector<size_t> placed;  // by offset
  for (size_t b : order) {
    int64_t need = aligned(buffers[b].bytes), end = 0, best = -1, best_gap = INT64_MAX;
    if (need == 0) continue;
    for (size_t p : placed) {
      if (is_apart(buffers[p], buffers[b])) continue;
      int64_t gap = layout.offsets[p] - end;
      if (gap >= need && gap < best_gap) {
        best = end;
        best_gap = gap;
      }
      end = std::max(end, layout.offsets[p] + aligned(buffers[p].bytes));
    }
    layout.offsets[b] = best >= 0 ? best : end;
    layout.bytes = std::max(layout.bytes, layout.offsets[b] + need);
    auto at = std::upper_bound(placed.begin(), placed.end(), b,
                               [&](size_t x, size_t y) { return layout.offsets[x] < layout.offsets[y]; });
    placed.insert(at, b);
  }
  return layout;
}

}  // namespace

ArenaLayout layout_arena(std::span<const Lifetime> buffers) {
  std::vector<size_t> by_size(buffers.size());
  std::iota(by_size.begin(), by_size.end(), 0);
  std::vector<size_t> by_birth = by_size;
  std::stable_sort(by_size.begin(), by_size.end(),
                   [&](size_t a, size_t b) { return buffers[a].bytes > buffers[b].bytes; });
  std::stable_sort(by_birth.begin(), by_birth.end(),
                   [&](size_t a, size_t b) { return buffers[a].birth < buffers[b].birth; });
  ArenaLayout one = place(buffers, by_size), other = place(buffers, by_birth);
  return one.bytes <= other.bytes ? one : other;
}

}  // namespace partita
