#include "runtime/kernels/indexing.h"

namespace partita::runtime {

absl::StatusOr<AlongLayout> AlongLayout::make(const KernelRequest& r, const Shape& x, const Shape& indices) {
  const int64_t dim = resolve_dim(r.i("dim", 0), x.size());
  if (dim < 0 || indices.size() != x.size())
    return r.error(cat("indices of x's rank and a dim inside it, not ", r.i("dim", 0)));
  AlongLayout layout;
  layout.columns = 1;
  for (size_t d = 0; d < x.size(); ++d) {
    const int64_t x_stride = product(x, d + 1, x.size()), index_stride = product(indices, d + 1, indices.size());
    if (static_cast<int64_t>(d) == dim) {
      layout.size = x[d];
      layout.x_stride = x_stride;
      layout.count = indices[d];
      layout.inner = index_stride;
      continue;
    }
    if (indices[d] > x[d]) return r.error("indices no larger than x in the other dims");
    layout.extents.push_back(indices[d]);
    layout.x_strides.push_back(x_stride);
    layout.index_strides.push_back(index_stride);
    layout.columns *= indices[d];
  }
  return layout;
}

absl::StatusOr<SliceLayout> SliceLayout::make(const KernelRequest& r, const Shape& x, const Shape& indices) {
  const int64_t batch_dims = r.i("batch_dims", 0);
  if (batch_dims < 0 || batch_dims >= static_cast<int64_t>(indices.size()))
    return r.error(cat("indices with more than ", batch_dims, " batch dims"));
  const size_t batch = static_cast<size_t>(batch_dims);
  SliceLayout layout;
  layout.depth = indices.back();
  if (batch + static_cast<size_t>(layout.depth) > x.size() || layout.depth > static_cast<int64_t>(x.size()))
    return r.error("indices no longer than x's rank");
  for (size_t d = 0; d < batch; ++d) {
    if (x[d] != indices[d]) return r.error("equal batch dims");
  }
  const size_t indexed = batch + static_cast<size_t>(layout.depth);
  layout.batches = product(indices, 0, batch);
  layout.count = product(indices, batch, indices.size() - 1);
  layout.slice = product(x, indexed, x.size());
  layout.batch_elements = product(x, batch, x.size());
  for (size_t d = batch; d < indexed; ++d) {
    layout.extents.push_back(x[d]);
    layout.strides.push_back(product(x, d + 1, x.size()));
    layout.empty |= x[d] == 0;
  }
  return layout;
}

}  // namespace partita::runtime
