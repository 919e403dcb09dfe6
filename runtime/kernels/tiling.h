// A dimension of a product in tiles.
#pragma once

#include <algorithm>
#include <cstdint>

namespace partita::runtime {

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// `tiles` of nearly one size, or fewer, each whole units but for the last one's end.
struct Tiling {
  int64_t size, tile;
  Tiling(int64_t size, int64_t tiles, int64_t unit)
      : size(size), tile(divide_up(divide_up(size, tiles), unit) * unit) {}
  int64_t count() const { return divide_up(size, tile); }
  int64_t begin(int64_t k) const { return k * tile; }
  int64_t extent(int64_t k) const { return std::min(tile, size - k * tile); }
};

}  // namespace partita::runtime
