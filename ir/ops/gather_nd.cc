#include "base/cat.h"
#include "base/status.h"
#include "ir/graph/builder.h"
#include "ir/ops/indexing.h"

namespace partita {
namespace {

absl::StatusOr<std::vector<TensorType>> gather_nd_types(const OpView& use) {
  PARTITA_ASSIGN_OR_RETURN(Shape shape, gather_nd_shape(use.shape(0), use.inputs[1], use.attrs.i("batch_dims")));
  return one_output(use.dtype(), std::move(shape));
}

absl::StatusOr<std::vector<TensorType>> gather_nd_grad_types(const OpView& use) {
  const Shape& to = use.attrs.ints("shape");
  if (!checked_elements(to))
    return absl::InvalidArgumentError(cat("attribute 'shape': ", to_string(to), " is no shape"));
  PARTITA_ASSIGN_OR_RETURN(Shape gathered, gather_nd_shape(to, use.inputs[1], use.attrs.i("batch_dims")));
  if (gathered != use.shape(0))
    return absl::InvalidArgumentError(
        cat("expected a gradient of shape ", to_string(gathered), ", found ", to_string(use.shape(0))));
  return one_output(use.dtype(), to);
}

// The factors: a… of the batch, q… (with `suffix`) of the many coordinates, n… of the indexed dimensions, r… of the
// rest.
// "~ a0 n0^ n1^ r0, a0 q0 k^ -> a0 q0 r0", and its gradient "~ a0 q0+ r0, a0 q0 k^ -> a0 n0=5^ n1=4^ r0".
struct Names {
  std::string batch, many, indexed, rest;
};
Names names(const Shape& x, const Shape& indices, int64_t batch_dims, bool gradient) {
  Names n;
  int64_t k = indices.back();
  for (int64_t d = 0; d < batch_dims; ++d) append(n.batch, " a", d);
  for (size_t d = static_cast<size_t>(batch_dims); d + 1 < indices.size(); ++d)
    append(n.many, " q", d, gradient ? "+" : "");
  for (int64_t d = batch_dims; d < batch_dims + k; ++d) append(n.indexed, " n", d, gradient ? cat("=", x[d]) : "", "^");
  for (size_t d = static_cast<size_t>(batch_dims + k); d < x.size(); ++d) append(n.rest, " r", d);
  return n;
}

std::string gather_nd_formula(const OpView& use) {
  Names n = names(use.shape(0), use.shape(1), use.attrs.i("batch_dims"), false);
  return cat("~", n.batch, n.indexed, n.rest, ",", n.batch, n.many, " k^ ->", n.batch, n.many, n.rest);
}

std::string gather_nd_grad_formula(const OpView& use) {
  Names n = names(use.attrs.ints("shape"), use.shape(1), use.attrs.i("batch_dims"), true);
  return cat("~", n.batch, n.many, n.rest, ",", n.batch, n.many, " k^ ->", n.batch, n.indexed, n.rest);
}

}  // namespace

// (x [batch…, d1…dk, rest…], indices [batch…, many…, k]) -> [batch…, many…, rest…]: element or slice of x at each tuple
// of k coordinates.
extern const OpDef kGatherNd = {
    .name = "gather_nd",
    .min_inputs = 2,
    .max_inputs = 2,
    .attributes = "i batch_dims",
    .formula_of = gather_nd_formula,
    .infer = gather_nd_types,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      Attrs attrs = {{"batch_dims", use.attrs.i("batch_dims")}, {"shape", use.types[0].shape}};
      return {use.b.emit("gather_nd_grad", {use.gradients[0], use.inputs[1]}, std::move(attrs)), kNoValue};
    },
    .evaluate =
        [](const OpView& use, std::span<const Tensor* const> in, std::vector<Tensor>& outputs) {
          int64_t k = 0;
          for_each_index(outputs[0].type.shape, [&](const std::vector<int64_t>& index) {
            copy_element(*in[0], nd_position(*in[1], use.shape(0), use.attrs.i("batch_dims"), index), outputs[0], k++);
          });
        },
    .kernel = true,
};

// (gradient of a gather_nd's result, indices) -> gradient of x, which has attribute `shape`: what was gathered from one
// place is summed.
extern const OpDef kGatherNdGrad = {
    .name = "gather_nd_grad",
    .min_inputs = 2,
    .max_inputs = 2,
    .attributes = "i batch_dims, ints shape",
    .formula_of = gather_nd_grad_formula,
    .infer = gather_nd_grad_types,
    .flops_per_point = 1,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      return {use.b.emit("gather_nd", {use.gradients[0], use.inputs[1]}, {{"batch_dims", use.attrs.i("batch_dims")}}),
              kNoValue};
    },
    .evaluate =
        [](const OpView& use, std::span<const Tensor* const> in, std::vector<Tensor>& outputs) {
          int64_t k = 0;
          for_each_index(use.shape(0), [&](const std::vector<int64_t>& index) {
            scatter_element("add", *in[0], k++, outputs[0],
                            nd_position(*in[1], outputs[0].type.shape, use.attrs.i("batch_dims"), index));
          });
        },
    .kernel = true,
};

}  // namespace partita
