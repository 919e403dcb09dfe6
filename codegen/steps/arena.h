// Static memory: each buffer gets an offset for good; two buffers share bytes only where their lifetimes are apart.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace partita {

// Bytes that a buffer takes: whole cache lines.
inline int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// A buffer is written first at step `birth` and used last at step `death` (inclusive): one that micro-batches read
// again and again, at step `last` of the last one's run, after which buffers of steps that run once a step, beside or
// behind the last one's (`once`), may take its place.
struct Lifetime {
  int64_t bytes = 0;
  int birth = 0;
  int death = 0;
  int last = 0;
  bool once = false;
};

struct ArenaLayout {
  std::vector<int64_t> offsets;  // multiples of 64
  int64_t bytes = 0;
};

// Best fit, largest first or in order of birth, whichever takes less.
ArenaLayout layout_arena(std::span<const Lifetime> buffers);

}  // namespace partita
