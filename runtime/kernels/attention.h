// What attention and attention_grad share: the problem, its masks, and tiles of scores.
#pragma once

#include <cmath>
#include <limits>

#include "base/math/masked_score.h"
#include "runtime/kernels/compute_operand.h"
#include "runtime/kernels/kernel_request.h"
#include "runtime/kernels/tile_ops.h"
#include "runtime/kernels/transpose.h"

namespace partita::runtime {

constexpr int64_t kQueryTile = 64, kKeyTile = 128;

// Where rows lie in an operand: the first, and from there on, in elements.
struct AttentionRows {
  int64_t offset = 0, batch = 0, head = 0, row = 0;
  int64_t at(int64_t b, int64_t h, int64_t i) const { return offset + b * batch + h * head + i * row; }
};

struct AttentionShape {
  int64_t batch = 1, heads = 1, kv_heads = 1, s = 1, t = 1, d = 1, e = 1;
  double scale = 1;
  bool causal = false;
  DType mask = DType::kInvalid;           // bool, or the type that is computed in
  int64_t mask_stride[4] = {0, 0, 0, 0};  // elements; 0 where it is broadcast
  // By the step's parameters, or dense; of a gradient alone: g, dq, dk, dv.
  AttentionRows q, k, v, out, g, dq, dk, dv;

  // A step with the parameter `sizes` has all of those as parameters, too (codegen/prepare/attention_views.h).
  static absl::StatusOr<AttentionShape> make(const KernelRequest& r, const Operand& q, const Operand& k,
                                             const Operand& v, const Operand* mask);

  int64_t group() const { return heads / kv_heads; }
  // Keys that some query of [first, first + rows) may attend: [0, result).
  int64_t key_end(int64_t first, int64_t rows) const {
    return causal ? std::clamp<int64_t>(first + rows + t - s, 0, t) : t;
  }
  // The first query that may attend key j.
  int64_t query_begin(int64_t j) const { return causal ? std::clamp<int64_t>(j - (t - s), 0, s) : 0; }
};

// Some samples, or some key heads of one sample with the query heads that share them.
struct AttentionPart {
  AttentionShape shape;   // its rows begin where the part's do
  int64_t first_row = 0;  // of its queries, among those of all samples and heads
};
// `count` equal parts; of samples where it divides them, else a multiple of the samples that divides the key heads,
// too.
std::vector<AttentionPart> attention_parts(const AttentionShape& whole, int64_t count);

// to[d][columns] = `count` rows of d elements, one every `pitch`, transposed; `columns` >= count, the rest zero.
template <typename T>
void pack_transposed(const T* from, int64_t count, int64_t d, int64_t pitch, T* to, int64_t columns) {
  transpose(to, columns, from, pitch, count, d);
  for (int64_t i = 0; i < d && count < columns; ++i) std::fill(to + i * columns + count, to + (i + 1) * columns, T(0));
}

// Turns a tile of q k^T into scores, -infinity where a query must not look, and returns a positive factor that they
// still have to be multiplied with: the scale, unless a mask that adds or a scale that is not positive made it go
// first. `mask` is at [b, h]; `row` is the tile's stride.
template <typename T>
T mask_tile(const AttentionShape& shape, const std::byte* mask, int64_t i0, int64_t rows, int64_t j0, int64_t columns,
            T* tile, int64_t row) {
  constexpr T kNever = -std::numeric_limits<T>::infinity();
  constexpr T kLeast = static_cast<T>(kLeastMaskedScore);
  T factor = static_cast<T>(shape.scale);
  const int64_t along_s = shape.mask_stride[2], along_t = shape.mask_stride[3];
  const bool adds = mask != nullptr && shape.mask != DType::kBool;
  if (!(factor > T(0)) && !adds) {
    for (int64_t i = 0; i < rows; ++i) tile_ops<T>().scale_row(tile + i * row, columns, factor);
    factor = 1;
  }
  if (mask != nullptr && !adds) {
    for (int64_t i = 0; i < rows; ++i) {
      const uint8_t* m = reinterpret_cast<const uint8_t*>(mask) + (i0 + i) * along_s + j0 * along_t;
      for (int64_t j = 0; j < columns; ++j) tile[i * row + j] = m[j * along_t] != 0 ? tile[i * row + j] : kNever;
    }
  } else if (adds) {
    for (int64_t i = 0; i < rows; ++i) {
      const T* m = reinterpret_cast<const T*>(mask) + (i0 + i) * along_s + j0 * along_t;
      for (int64_t j = 0; j < columns; ++j) {
        const T score = tile[i * row + j] * factor + m[j * along_t];
        tile[i * row + j] = score < kLeast && score > kNever ? kLeast : score;
      }
    }
    factor = 1;
  }
  const int64_t offset = shape.t - shape.s;
  if (shape.causal && j0 + columns - 1 > i0 + offset) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = std::max<int64_t>(i0 + i + offset + 1 - j0, 0); j < columns; ++j) tile[i * row + j] = kNever;
    }
  }
  return factor;
}

inline const std::byte* mask_of_head(const AttentionShape& shape, const std::byte* mask, int64_t b, int64_t h) {
  return mask == nullptr ? nullptr
                         : mask + (b * shape.mask_stride[0] + h * shape.mask_stride[1]) * dtype_size(shape.mask);
}

// The type that attention on `dtype` computes in; kInvalid when it has none.
inline DType attention_compute_type(DType dtype) {
  return dtype == DType::kF64 ? DType::kF64 : is_float(dtype) ? DType::kF32 : DType::kInvalid;
}

}  // namespace partita::runtime
