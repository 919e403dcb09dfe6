#include "ir/graph/strided_view.h"

#include "ir/op/op_def.h"

namespace partita {
namespace {

// Dimensions of one element have a stride that nobody looks at: it is 0.
void forget_single(StridedView& view) {
  for (size_t d = 0; d < view.shape.size(); ++d) {
    if (view.shape[d] == 1) view.strides[d] = 0;
  }
}

// Groups of dimensions of both shapes with the same number of elements: within one, the old ones must lie as one line.
std::optional<StridedView> reshaped(const StridedView& from, const Shape& shape) {
  if (elements(from.shape) != elements(shape) || elements(shape) == 0) return std::nullopt;
  StridedView to{shape, from.offset, Shape(shape.size(), 0)};
  size_t i = 0, j = 0;  // behind the last group
  while (i < from.shape.size() || j < shape.size()) {
    const size_t i0 = i, j0 = j;
    int64_t old_count = 1, new_count = 1;
    do {
      if (i < from.shape.size() && (old_count <= new_count || j == shape.size())) {
        old_count *= from.shape[i++];
      } else {
        new_count *= shape[j++];
      }
    } while (old_count != new_count);
    int64_t stride = 0, next = 0;  // of the line, and of the dimension before what was looked at
    for (size_t d = i; d-- > i0;) {
      if (from.shape[d] == 1) continue;
      if (next != 0 && from.strides[d] != next) return std::nullopt;
      if (next == 0) stride = from.strides[d];
      next = from.strides[d] * from.shape[d];
    }
    for (size_t d = j; d-- > j0; stride *= shape[d]) to.strides[d] = stride;
  }
  forget_single(to);
  return to;
}

}  // namespace

StridedView dense_view(const Shape& shape) {
  StridedView view{shape, 0, Shape(shape.size(), 0)};
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0; stride *= shape[d]) view.strides[d] = stride;
  forget_single(view);
  return view;
}

std::optional<StridedView> view_after(const Graph& graph, const Node& n, const StridedView& operand) {
  const Shape& shape = graph.type(n.outputs[0]).shape;
  if (n.op == find_op("reshape")) return reshaped(operand, shape);
  StridedView view{shape, operand.offset, operand.strides};
  if (n.op == find_op("transpose")) {
    const Shape& permutation = n.attrs.ints("permutation");
    for (size_t d = 0; d < shape.size(); ++d) view.strides[d] = operand.strides[static_cast<size_t>(permutation[d])];
  } else if (n.op == find_op("slice")) {
    const Shape &starts = n.attrs.ints("starts"), &steps = n.attrs.ints("strides");
    for (size_t d = 0; d < shape.size(); ++d) {
      if (steps[d] != 1) return std::nullopt;
      view.offset += starts[d] * operand.strides[d];
    }
  } else {
    return std::nullopt;
  }
  forget_single(view);
  return view;
}

std::optional<StridedView> view_before(const Graph& graph, const Node& n, size_t k, const StridedView& result) {
  const Shape& shape = graph.type(n.inputs[k]).shape;
  if (n.op == find_op("reshape")) return reshaped(result, shape);
  StridedView view{shape, result.offset, result.strides};
  if (n.op == find_op("transpose")) {
    const Shape& permutation = n.attrs.ints("permutation");
    for (size_t d = 0; d < shape.size(); ++d) view.strides[static_cast<size_t>(permutation[d])] = result.strides[d];
  } else if (n.op == find_op("concat")) {
    const auto dim = static_cast<size_t>(n.attrs.i("dim"));
    for (size_t before = 0; before < k; ++before)
      view.offset += graph.type(n.inputs[before]).shape[dim] * result.strides[dim];
  } else {
    return std::nullopt;
  }
  forget_single(view);
  return view;
}

}  // namespace partita
