#include "base/cat.h"
#include "base/status.h"
#include "ir/graph/builder.h"
#include "ir/ops/indexing.h"

namespace partita {
namespace {

// x.shape[:dim] + indices.shape + x.shape[dim + 1:]
Shape gathered_shape(const Shape& x, const Shape& indices, int64_t dim) {
  Shape shape(x.begin(), x.begin() + dim);
  shape.insert(shape.end(), indices.begin(), indices.end());
  shape.insert(shape.end(), x.begin() + dim + 1, x.end());
  return shape;
}

absl::StatusOr<std::vector<TensorType>> gather_types(const OpView& use) {
  int64_t dim = use.attrs.i("dim");
  PARTITA_RETURN_IF_ERROR(check_dim(dim, use.rank()));
  PARTITA_RETURN_IF_ERROR(check_indices(use.inputs[1]));
  if (use.shape(0)[dim] == 0 && elements(use.shape(1)) > 0) {
    return absl::InvalidArgumentError(
        cat("expected something to index along dimension ", dim, ", found ", to_string(use.shape(0))));
  }
  return one_output(use.dtype(), gathered_shape(use.shape(0), use.shape(1), dim));
}

// The factors of the indices; of the gathered tensor's dimensions but `dim`, before and after it.
struct Names {
  std::string indices, before, after;
};
Names names(int rank, int index_rank, int64_t dim, const char* suffix) {
  Names n;
  for (int d = 0; d < index_rank; ++d) append(n.indices, " i", d, suffix);
  for (int d = 0; d < rank; ++d) {
    if (d != dim) append(d < dim ? n.before : n.after, " ", factor_name(d));
  }
  return n;
}

// "~ a b^ c, i0 i1 -> a i0 i1 c"
std::string gather_formula(const OpView& use) {
  int64_t dim = use.attrs.i("dim");
  Names n = names(use.rank(), use.rank(1), dim, "");
  return cat("~", n.before, " ", factor_name(static_cast<int>(dim)), "^", n.after, ",", n.indices, " ->", n.before,
             n.indices, n.after);
}

void gather_evaluate(const OpView& use, std::span<const Tensor* const> in, std::vector<Tensor>& outputs) {
  Around a(use.shape(0), use.attrs.i("dim"));
  int64_t count = elements(use.shape(1)), target = 0;
  for (int64_t o = 0; o < a.outer; ++o) {
    for (int64_t k = 0; k < count; ++k) {
      int64_t row = o * a.size + clamped_index(in[1]->i[k], a.size);
      for (int64_t n = 0; n < a.inner; ++n) copy_element(*in[0], row * a.inner + n, outputs[0], target++);
    }
  }
}

// Whether a value is a state or an input, in whatever type and order of elements.
bool is_given(const Builder& b, ValueId v) {
  const Node* node = b.graph().producer(v);
  while (node != nullptr && (node->op->casts || node->op->moves) && node->inputs.size() == 1)
    node = b.graph().producer(node->inputs[0]);
  return node == nullptr;
}

// Known indices at like distances are a slice, which kernels that read it take upon themselves, and whose gradient is
// padding. (An embedding stays one: it can be divided by its rows, and its gradient has those that were looked up.)
ValueId gather_simpler(const OpUse& use) {
  const Literal* indices = use.b.literal(use.inputs[1]);
  const int64_t dim = use.attrs.i("dim"), size = use.types[0].shape[dim];
  if (indices == nullptr || size == 0 || elements(indices->type.shape) == 0 || is_given(use.b, use.inputs[0]))
    return kNoValue;
  const int64_t count = elements(indices->type.shape), first = clamped_index(element_i(*indices, 0), size);
  const int64_t stride = count == 1 ? 1 : clamped_index(element_i(*indices, 1), size) - first;
  if (stride < 1) return kNoValue;
  for (int64_t k = 2; k < count; ++k) {
    if (clamped_index(element_i(*indices, k), size) != first + k * stride) return kNoValue;
  }
  Shape starts(use.types[0].shape.size(), 0), limits = use.types[0].shape, strides(limits.size(), 1);
  starts[dim] = first, limits[dim] = first + (count - 1) * stride + 1, strides[dim] = stride;
  ValueId x = use.inputs[0];
  if (count != size) x = use.b.emit("slice", {x}, {{"starts", starts}, {"limits", limits}, {"strides", strides}});
  return use.b.reshape(x, gathered_shape(use.types[0].shape, indices->type.shape, dim));
}

absl::StatusOr<std::vector<TensorType>> gather_grad_types(const OpView& use) {
  int64_t dim = use.attrs.i("dim"), size = use.attrs.i("size");
  int rank = use.rank(0) - use.rank(1) + 1;
  PARTITA_RETURN_IF_ERROR(check_dim(dim, rank));
  PARTITA_RETURN_IF_ERROR(check_indices(use.inputs[1]));
  Shape shape(use.shape(0).begin(), use.shape(0).begin() + dim);
  shape.push_back(size);
  shape.insert(shape.end(), use.shape(0).begin() + dim + use.rank(1), use.shape(0).end());
  if (size < 0 || (size == 0 && elements(use.shape(1)) > 0) ||
      gathered_shape(shape, use.shape(1), dim) != use.shape(0)) {
    return absl::InvalidArgumentError(cat("expected the gradient of a gather along dimension ", dim, " of ", size,
                                          ", found ", to_string(use.shape(0)), " for indices ",
                                          to_string(use.shape(1))));
  }
  return one_output(use.dtype(), std::move(shape));
}

// "~ a i0+ i1+ c, i0 i1 -> a n=50^ c": a split of the indices leaves a partial sum.
std::string gather_grad_formula(const OpView& use) {
  int64_t dim = use.attrs.i("dim");
  int rank = use.rank(0) - use.rank(1) + 1;
  Names n = names(rank, use.rank(1), dim, "+"), plain = names(rank, use.rank(1), dim, "");
  return cat("~", n.before, n.indices, n.after, ",", plain.indices, " ->", n.before, " n0=", use.attrs.i("size"), "^",
             n.after);
}

void gather_grad_evaluate(const OpView& use, std::span<const Tensor* const> in, std::vector<Tensor>& outputs) {
  Around a(outputs[0].type.shape, use.attrs.i("dim"));
  int64_t count = elements(use.shape(1)), source = 0;
  for (int64_t o = 0; o < a.outer; ++o) {
    for (int64_t k = 0; k < count; ++k) {
      int64_t row = o * a.size + clamped_index(in[1]->i[k], a.size);
      for (int64_t n = 0; n < a.inner; ++n) scatter_element("add", *in[0], source++, outputs[0], row * a.inner + n);
    }
  }
}

}  // namespace

// (x, indices): slices of x along `dim`, one for each index. An embedding is a gather along 0.
extern const OpDef kGather = {
    .name = "gather",
    .min_inputs = 2,
    .max_inputs = 2,
    .attributes = "i dim",
    .formula_of = gather_formula,
    .infer = gather_types,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      int64_t dim = use.attrs.i("dim");
      return {use.b.emit("gather_grad", {use.gradients[0], use.inputs[1]},
                         {{"dim", dim}, {"size", use.types[0].shape[dim]}}),
              kNoValue};
    },
    .simpler = gather_simpler,
    .evaluate = gather_evaluate,
    .split_form = [](const OpUse& use) -> std::vector<ValueId> {
      int64_t dim = use.attrs.i("dim"), size = use.types[0].shape[dim];
      ValueId positions = use.b.emit("iota", {}, {{"size", size}, {"to", DType::kI64}});
      return {use.b.emit("gather_rows", {use.inputs[0], positions, use.inputs[1]}, {{"dim", dim}, {"size", size}})};
    },
    .lengthened = [](const OpUse& use, std::span<const Shape>) -> std::vector<ValueId> {
      int64_t dim = use.attrs.i("dim"), size = use.types[0].shape[dim];
      if (use.b.shape(use.inputs[0])[dim] == size) return {};
      ValueId rows = indices_within(use.b, use.inputs[1], size);
      return {use.b.emit("gather", {use.inputs[0], rows}, {{"dim", dim}})};
    },
    .kernel = true,
    .wraps_indices = true,
};

// (gradient of a gather's result, indices) -> gradient of x, whose dimension `dim` has `size` elements: the slices of
// each index are summed.
extern const OpDef kGatherGrad = {
    .name = "gather_grad",
    .min_inputs = 2,
    .max_inputs = 2,
    .attributes = "i dim, i size",
    .formula_of = gather_grad_formula,
    .infer = gather_grad_types,
    .flops_per_point = 1,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      return {use.b.emit("gather", {use.gradients[0], use.inputs[1]}, {{"dim", use.attrs.i("dim")}}), kNoValue};
    },
    .evaluate = gather_grad_evaluate,
    .split_form = [](const OpUse& use) -> std::vector<ValueId> {
      int64_t dim = use.attrs.i("dim"), size = use.attrs.i("size");
      ValueId positions = use.b.emit("iota", {}, {{"size", size}, {"to", DType::kI64}});
      return {
          use.b.emit("gather_rows_grad", {use.inputs[0], positions, use.inputs[1]}, {{"dim", dim}, {"size", size}})};
    },
    .lengthened = [](const OpUse& use, std::span<const Shape> shapes) -> std::vector<ValueId> {
      int64_t dim = use.attrs.i("dim"), size = use.attrs.i("size");
      if (shapes[0][dim] == size) return {};
      ValueId rows = indices_within(use.b, use.inputs[1], size);
      return {use.b.emit("gather_grad", {use.inputs[0], rows}, {{"dim", dim}, {"size", shapes[0][dim]}})};
    },
    .kernel = true,
};

}  // namespace partita
