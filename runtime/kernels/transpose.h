// Matrices turned, in vectors of 16 bytes, which every processor has: wider ones are no faster, as loads and stores are
// what takes the time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace partita::runtime {

// to[j][i] = from[i][j] for a square of as many rows and columns as 16 bytes have elements; both with contiguous rows,
// `to_row` and `from_row` elements apart.
template <typename T>
void transpose_square(T* to, int64_t to_row, const T* from, int64_t from_row) {
  typedef T V __attribute__((vector_size(16)));
  typedef T Unaligned __attribute__((vector_size(16), aligned(sizeof(T)), may_alias));
  const auto row = [&](int64_t i) -> V { return *reinterpret_cast<const Unaligned*>(from + i * from_row); };
  const auto put = [&](int64_t j, V v) { *reinterpret_cast<Unaligned*>(to + j * to_row) = v; };
  if constexpr (sizeof(T) == 8) {
    typedef int64_t I __attribute__((vector_size(16)));
    const V a = row(0), b = row(1);
    put(0, __builtin_shuffle(a, b, I{0, 2}));
    put(1, __builtin_shuffle(a, b, I{1, 3}));
  } else {
    static_assert(sizeof(T) == 4);
    typedef int32_t I __attribute__((vector_size(16)));
    const V a = row(0), b = row(1), c = row(2), d = row(3);
    const V ab = __builtin_shuffle(a, b, I{0, 4, 1, 5}), cd = __builtin_shuffle(c, d, I{0, 4, 1, 5});
    put(0, __builtin_shuffle(ab, cd, I{0, 1, 4, 5}));
    put(1, __builtin_shuffle(ab, cd, I{2, 3, 6, 7}));
    const V ba = __builtin_shuffle(a, b, I{2, 6, 3, 7}), dc = __builtin_shuffle(c, d, I{2, 6, 3, 7});
    put(2, __builtin_shuffle(ba, dc, I{0, 1, 4, 5}));
    put(3, __builtin_shuffle(ba, dc, I{2, 3, 6, 7}));
  }
}

// to[columns][rows] = the transposed of from[rows][columns].
template <typename T>
void transpose(T* to, int64_t to_row, const T* from, int64_t from_row, int64_t rows, int64_t columns) {
  constexpr int64_t kSide = 16 / sizeof(T), kBlock = 32;  // rows whose cache lines stay at hand
  const int64_t whole = columns / kSide * kSide;
  for (int64_t i0 = 0; i0 < rows; i0 += kBlock) {
    const int64_t end = std::min(rows, i0 + kBlock), squares = i0 + (end - i0) / kSide * kSide;
    for (int64_t j = 0; j < whole; j += kSide) {
      for (int64_t i = i0; i < squares; i += kSide)
        transpose_square(to + j * to_row + i, to_row, from + i * from_row + j, from_row);
      for (int64_t i = squares; i < end; ++i) {
        for (int64_t s = j; s < j + kSide; ++s) to[s * to_row + i] = from[i * from_row + s];
      }
    }
    for (int64_t j = whole; j < columns; ++j) {
      for (int64_t i = i0; i < end; ++i) to[j * to_row + i] = from[i * from_row + j];
    }
  }
}

}  // namespace partita::runtime
