// Where the indices of take_along, gather_nd and their inverses point.
#pragma once

#include <utility>

#include "runtime/kernels/kernel_request.h"

namespace partita::runtime {

// take_along and scatter_elements: indices of x's rank, each other dimension no larger than x's. A column is the line
// along `dim` through one point of the other dimensions; columns never meet in x, so they may run in parallel.
struct AlongLayout {
  int64_t size = 0;      // of x along dim
  int64_t x_stride = 1;  // of x along dim
  int64_t count = 0;     // of the indices along dim
  int64_t inner = 1;     // of the indices after dim: their stride along dim
  int64_t columns = 0;
  Shape extents, x_strides, index_strides;  // of the other dimensions

  static absl::StatusOr<AlongLayout> make(const KernelRequest& r, const Shape& x, const Shape& indices);

  // Offsets of a column's first element in x and in the indices.
  std::pair<int64_t, int64_t> column(int64_t c) const {
    int64_t at_x = 0, at_i = 0;
    for (size_t d = extents.size(); d-- > 0; c /= extents[d]) {
      at_x += c % extents[d] * x_strides[d];
      at_i += c % extents[d] * index_strides[d];
    }
    return {at_x, at_i};
  }
};

// gather_nd and scatter_nd: indices [batch..., count..., depth] choose slices x[batch..., i_0, …, i_depth-1, :].
struct SliceLayout {
  int64_t batches = 1, count = 1, depth = 0, slice = 1;
  int64_t batch_elements = 1;  // of x
  bool empty = false;          // an indexed dimension of x has no elements
  Shape extents, strides;      // of the indexed dimensions

  static absl::StatusOr<SliceLayout> make(const KernelRequest& r, const Shape& x, const Shape& indices);

  // Element of x where row r of batches * count begins.
  template <typename I>
  int64_t offset(const I* indices, int64_t row) const {
    int64_t at = row / count * batch_elements;
    for (int64_t d = 0; d < depth; ++d)
      at += clamp_index(indices[row * depth + d], extents[static_cast<size_t>(d)]) * strides[static_cast<size_t>(d)];
    return at;
  }
};

}  // namespace partita::runtime
