// A matrix in fp8 with the scales of its blocks of 128, as one buffer of bytes: the numbers, row by row, the dimension
// that a product sums over last; then the scales, as cuBLASLt's modes VEC128_32F and BLK128x128_32F have them.
#pragma once

#include <cstdint>

namespace partita {

inline constexpr int64_t kFp8Block = 128;

struct QuantizedMatrix {
  int64_t rows = 0, inner = 0;  // inner: a multiple of kFp8Block; rows too, where there are tiles
  bool tiles = false;           // a scale for each kFp8Block x kFp8Block numbers, or for each kFp8Block of a row

  int64_t blocks() const { return inner / kFp8Block; }  // of a row
  // f32 [rows / kFp8Block, blocks rounded up to a multiple of 4], or [blocks, rows].
  int64_t scales() const { return tiles ? rows / kFp8Block * ((blocks() + 3) / 4 * 4) : blocks() * rows; }
  int64_t first_scale() const { return rows * inner; }  // the byte that it begins at
  int64_t bytes() const { return first_scale() + 4 * scales(); }
  // What cuBLASLt multiplies: rows of 16 bytes of operands and results, whole blocks.
  bool fits() const { return rows > 0 && inner > 0 && inner % kFp8Block == 0 && rows % (tiles ? kFp8Block : 16) == 0; }
};

}  // namespace partita
