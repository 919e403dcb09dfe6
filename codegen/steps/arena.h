// Static memory: each buffer gets an offset for good; two buffers share bytes only where their lifetimes are apart.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace partita {

// A buffer is written first at step `birth` and used last at step `death` (inclusive).
struct Lifetime {
  int64_t bytes = 0;
  int birth = 0;
  int death = 0;
};

struct ArenaLayout {
  std::vector<int64_t> offsets;  // multiples of 64
  int64_t bytes = 0;
};

// Best fit, largest first or in order of birth, whichever takes less.
ArenaLayout layout_arena(std::span<const Lifetime> buffers);

}  // namespace partita
