#include "base/cat.h"
#include "base/status.h"
#include "ir/graph/builder.h"
#include "ir/ops/indexing.h"

namespace partita {
namespace {

absl::StatusOr<std::vector<TensorType>> take_along_types(const OpView& use) {
  int64_t dim = use.attrs.i("dim");
  PARTITA_RETURN_IF_ERROR(check_dim(dim, use.rank()));
  PARTITA_RETURN_IF_ERROR(check_indices(use.inputs[1]));
  bool fits = use.rank(0) == use.rank(1);
  for (int d = 0; fits && d < use.rank(); ++d)
    fits = d == dim ? use.shape(0)[d] > 0 || elements(use.shape(1)) == 0 : use.shape(1)[d] <= use.shape(0)[d];
  if (!fits) {
    return absl::InvalidArgumentError(cat("expected indices of x's rank that are nowhere larger but along dimension ",
                                          dim, ", found ", to_string(use.shape(0)), " and ", to_string(use.shape(1))));
  }
  return one_output(use.dtype(), use.shape(1));
}

// "~ a n0^ c, a m c -> a m c"; a dimension where x is larger than the indices is whole on both sides.
std::string take_along_formula(const OpView& use) {
  std::string x = "~", indices, out;
  for (int d = 0; d < use.rank(); ++d) {
    std::string name = factor_name(d);
    bool own = d != use.attrs.i("dim") && use.shape(0)[d] != use.shape(1)[d];
    append(x, " ", own || d == use.attrs.i("dim") ? cat("n", d, "^") : name);
    append(indices, " ", name, own ? "^" : "");
    append(out, " ", name);
  }
  return x + "," + indices + " ->" + out;
}

// Position in `shape` of the element that `index` of the indices points to.
int64_t along(const Tensor& indices, int64_t k, const std::vector<int64_t>& index, const Shape& shape, int64_t dim) {
  int64_t at = 0;
  for (size_t d = 0; d < shape.size(); ++d)
    at = at * shape[d] + (static_cast<int64_t>(d) == dim ? clamped_index(indices.i[k], shape[d]) : index[d]);
  return at;
}

std::vector<ValueId> take_along_gradient(const OpUse& use) {
  Builder& b = use.b;
  int64_t dim = use.attrs.i("dim");
  const Shape& shape = use.types[0].shape;
  ValueId dx = b.emit("take_along_grad", {use.gradients[0], use.inputs[1]}, {{"dim", dim}, {"size", shape[dim]}});
  if (b.shape(dx) == shape) return {dx, kNoValue};
  std::vector<int64_t> low(shape.size(), 0), high = shape;
  for (size_t d = 0; d < shape.size(); ++d) high[d] -= b.shape(dx)[d];
  return {b.emit("pad", {dx, b.scalar(b.dtype(dx), 0)}, {{"low", low}, {"high", high}}), kNoValue};
}

absl::StatusOr<std::vector<TensorType>> take_along_grad_types(const OpView& use) {
  int64_t dim = use.attrs.i("dim"), size = use.attrs.i("size");
  PARTITA_RETURN_IF_ERROR(check_dim(dim, use.rank()));
  PARTITA_RETURN_IF_ERROR(check_indices(use.inputs[1]));
  if (use.shape(0) != use.shape(1) || size < 0 || (size == 0 && elements(use.shape(1)) > 0)) {
    return absl::InvalidArgumentError(cat("expected a gradient of the indices' shape for a dimension of ", size,
                                          ", found ", to_string(use.shape(0)), " and ", to_string(use.shape(1))));
  }
  Shape shape = use.shape(0);
  shape[dim] = size;
  return one_output(use.dtype(), std::move(shape));
}

// "~ a m+ c, a m c -> a n0=7^ c"
std::string take_along_grad_formula(const OpView& use) {
  std::string g = "~", indices, out;
  for (int d = 0; d < use.rank(); ++d) {
    bool here = d == use.attrs.i("dim");
    append(g, " ", factor_name(d), here ? "+" : "");
    append(indices, " ", factor_name(d));
    append(out, " ", here ? cat("n0=", use.attrs.i("size"), "^") : factor_name(d));
  }
  return g + "," + indices + " ->" + out;
}

}  // namespace

// (x, indices of the same rank): result[…, k, …] = x[…, indices[…, k, …], …] along `dim` (ONNX GatherElements, PyTorch
// gather).
extern const OpDef kTakeAlong = {
    .name = "take_along",
    .min_inputs = 2,
    .max_inputs = 2,
    .attributes = "i dim",
    .formula_of = take_along_formula,
    .infer = take_along_types,
    .gradient = take_along_gradient,
    .evaluate =
        [](const OpView& use, std::span<const Tensor* const> in, std::vector<Tensor>& outputs) {
          int64_t k = 0;
          for_each_index(use.shape(1), [&](const std::vector<int64_t>& index) {
            copy_element(*in[0], along(*in[1], k, index, use.shape(0), use.attrs.i("dim")), outputs[0], k);
            ++k;
          });
        },
    .kernel = true,
    .wraps_indices = true,
};

// (gradient of a take_along's result, indices) -> gradient of x, `size` elements along `dim`, elsewhere of the indices'
// size.
extern const OpDef kTakeAlongGrad = {
    .name = "take_along_grad",
    .min_inputs = 2,
    .max_inputs = 2,
    .attributes = "i dim, i size",
    .formula_of = take_along_grad_formula,
    .infer = take_along_grad_types,
    .flops_per_point = 1,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      return {use.b.emit("take_along", {use.gradients[0], use.inputs[1]}, {{"dim", use.attrs.i("dim")}}), kNoValue};
    },
    .evaluate =
        [](const OpView& use, std::span<const Tensor* const> in, std::vector<Tensor>& outputs) {
          int64_t k = 0;
          for_each_index(use.shape(1), [&](const std::vector<int64_t>& index) {
            scatter_element("add", *in[0], k, outputs[0],
                            along(*in[1], k, index, outputs[0].type.shape, use.attrs.i("dim")));
            ++k;
          });
        },
    .kernel = true,
};

}  // namespace partita
