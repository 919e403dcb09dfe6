// Which chunks of an interleaved stage share slots.
#pragma once

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

namespace partita {

// Chunks by what a micro-batch leaves in them, most first, in classes: each has slots of its own, as large as its first
// chunk wants.
template <typename Bytes>
struct SlotClasses {
  std::vector<size_t> chunks;
  std::vector<size_t> ends;  // of the classes, among the chunks
  Bytes bytes = 0;           // of all slots
};

// The classes that take least. `bytes`: what each chunk wants; `slots(chunks)`: how many slots such chunks take
// together.
template <typename Bytes, typename Slots>
SlotClasses<Bytes> smallest_slots(std::span<const Bytes> bytes, Slots slots) {
  const size_t n = bytes.size();
  SlotClasses<Bytes> out;
  out.chunks.resize(n);
  std::iota(out.chunks.begin(), out.chunks.end(), 0);
  std::ranges::stable_sort(out.chunks, std::greater<>(), [&](size_t c) { return bytes[c]; });
  const auto of = [&](size_t k) { return bytes[out.chunks[k]]; };
  const auto alike = [&](size_t k) { return k > 0 && k < n && of(k) == of(k - 1); };  // no class begins there
  // The least that the first `end` take, and where their last class begins.
  std::vector<Bytes> least(n + 1, 0);
  std::vector<size_t> from(n + 1, 0);
  for (size_t end = 1; end <= n; ++end) {
    if (alike(end)) continue;
    least[end] = std::numeric_limits<Bytes>::max();
    for (size_t begin = 0; begin < end; ++begin) {
      if (alike(begin)) continue;
      const std::span<const size_t> last = std::span(out.chunks).subspan(begin, end - begin);
      const Bytes all = least[begin] + static_cast<Bytes>(slots(last)) * of(begin);
      if (all < least[end]) least[end] = all, from[end] = begin;
    }
  }
  for (size_t end = n; end > 0; end = from[end]) out.ends.push_back(end);
  std::ranges::reverse(out.ends);
  out.bytes = least[n];
  return out;
}

}  // namespace partita
