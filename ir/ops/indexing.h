// What definitions of structure, reduction and indexing ops share: checks of attributes that may come from anywhere,
// and plain loops for reference evaluation.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ir/op/op_def.h"

namespace partita {

// InvalidArgument unless 0 <= dim < rank. `what` names the attribute.
absl::Status check_dim(int64_t dim, int rank, std::string_view what = "dim");
// Each in range, none twice.
absl::Status check_dims(const std::vector<int64_t>& dims, int rank, std::string_view what = "dims");
// InvalidArgument unless `index` is i32 or i64.
absl::Status check_indices(const TensorType& indices);
// One output of this type; InvalidArgument where it is too large.
absl::StatusOr<std::vector<TensorType>> one_output(DType dtype, Shape shape);
// [0, n) as flags: which dims are listed.
std::vector<bool> dim_flags(const std::vector<int64_t>& dims, int rank);

// An index as a tensor holds it, into a dimension of `size` > 0: negative ones count from the end, then clamped, so
// that no element outside is touched.
inline int64_t clamped_index(int64_t index, int64_t size) {
  if (index < 0) index += size;
  return index < 0 ? 0 : index >= size ? size - 1 : index;
}

// The same of a tensor of them, for lookups in more rows than those that count.
ValueId indices_within(Builder& b, ValueId indices, int64_t size);

// Steps through a shape in row-major order; false after the last.
inline bool next_index(std::vector<int64_t>& index, const Shape& shape) {
  for (size_t d = shape.size(); d-- > 0;) {
    if (++index[d] < shape[d]) return true;
    index[d] = 0;
  }
  return false;
}

// f(index) for every index of `shape`, in row-major order.
template <typename F>
void for_each_index(const Shape& shape, F f) {
  if (elements(shape) == 0) return;
  std::vector<int64_t> index(shape.size(), 0);
  do f(static_cast<const std::vector<int64_t>&>(index));
  while (next_index(index, shape));
}

// Row-major position of `index` in `shape`.
inline int64_t position(const std::vector<int64_t>& index, const Shape& shape) {
  int64_t at = 0;
  for (size_t d = 0; d < shape.size(); ++d) at = at * shape[d] + index[d];
  return at;
}

inline void copy_element(const Tensor& from, int64_t source, Tensor& to, int64_t target) {
  if (is_float(to.type.dtype)) {
    to.f[target] = from.f[source];
  } else {
    to.i[target] = from.i[source];
  }
}

inline void add_element(const Tensor& from, int64_t source, Tensor& to, int64_t target) {
  if (is_float(to.type.dtype)) {
    to.f[target] += from.f[source];
  } else {
    to.i[target] += from.i[source];
  }
}

// A shape seen around one dimension: [outer, size, inner].
struct Around {
  int64_t outer = 1, size = 1, inner = 1;
  Around(const Shape& shape, int64_t dim) : size(shape[dim]) {
    for (int64_t d = 0; d < static_cast<int64_t>(shape.size()); ++d)
      (d < dim ? outer : inner) *= d == dim ? 1 : shape[d];
  }
};

// Whether a comes before b in descending (`largest`) order: NaN counts as the largest, as in PyTorch.
bool ranks_before(const Tensor& x, int64_t a, int64_t b, bool largest);

// Merges an update into an element: "none" (replace), "add", "mul", "max", "min".
absl::Status check_scatter_mode(const std::string& mode);
void scatter_element(const std::string& mode, const Tensor& updates, int64_t source, Tensor& to, int64_t target);

// Gradients of x and updates of a scatter, given how elements of x's shape are picked and how updates are put. Exact
// where no element is updated twice by "none"; "max" and "min" share the gradient among the elements that attain it.
using PickFunction = ValueId (*)(const OpUse&, ValueId from);
using PutFunction = ValueId (*)(const OpUse&, ValueId into, ValueId updates, const std::string& mode);
std::vector<ValueId> scatter_gradient(const OpUse& use, PickFunction pick, PutFunction put);

// Position in `shape` that the coordinates `indices` [batch…, many…, k] give for element `index` [batch…, many…, rest…]
// of a gather_nd.
int64_t nd_position(const Tensor& indices, const Shape& shape, int64_t batch_dims, const std::vector<int64_t>& index);
// Shape of gather_nd's result; InvalidArgument where the operands do not fit.
absl::StatusOr<Shape> gather_nd_shape(const Shape& x, const TensorType& indices, int64_t batch_dims);

}  // namespace partita
