#include "ir/ops/softmax.h"
#include "base/cat.h"
#include "ir/graph/builder.h"
#include "ir/ops/wide.h"

namespace partita {

absl::StatusOr<std::vector<TensorType>> softmax_types(const OpView& use) {
  int64_t dim = use.attrs.i("dim");
  if (!is_float(use.dtype()) || dim < 0 || dim >= use.rank()) {
    return absl::InvalidArgumentError(
        cat("expected a float tensor that has dimension ", dim, ", found ", to_string(use.inputs[0])));
  }
  return std::vector<TensorType>{use.inputs[0]};
}

std::string softmax_formula(const OpView& use) {
  std::string in, out;
  for (int d = 0; d < use.rank(); ++d) {
    append(in, factor_name(d), d == use.attrs.i("dim") ? "^ " : " ");
    append(out, " ", factor_name(d));
  }
  return in + "->" + out;
}

namespace {

// One pass for the maximum, one for the sum of exponentials, one to scale.
std::vector<ValueId> softmax_expand(const OpUse& use) {
  Builder& b = use.b;
  ValueId x = widen(b, use.inputs[0]);
  int64_t dim = use.attrs.i("dim");
  ValueId e = b.emit("exp", {b.sub(x, b.reduce("reduce_max", x, {dim}, true))});
  return {b.cast(b.div(e, b.reduce_sum(e, {dim}, true)), use.types[0].dtype)};
}

// dx = y (g - sum(g y)), where zero times anything is zero: a row of only -inf has y = NaN, and exported attention
// selects 0 instead, whose gradient g = 0 must not turn into NaN.
std::vector<ValueId> softmax_gradient(const OpUse& use) {
  Builder& b = use.b;
  ValueId y = widen(b, use.outputs[0]), g = widen(b, use.gradients[0]);
  ValueId zero = b.scalar(b.dtype(y), 0);
  ValueId gy = b.select(b.emit("eq", {g, zero}), zero, b.mul(g, y));
  ValueId rest = b.sub(g, b.reduce_sum(gy, {use.attrs.i("dim")}, true));
  return {b.cast(b.select(b.emit("eq", {rest, zero}), zero, b.mul(y, rest)), use.types[0].dtype)};
}

}  // namespace

// exp(x) / sum(exp(x)) along dimension `dim`; a row of only -inf gives NaN, as in ONNX.
extern const OpDef kSoftmax = {
    .name = "softmax",
    .attributes = "i dim",
    .formula_of = softmax_formula,
    .infer = softmax_types,
    .flops_per_point = 12,
    .gradient = softmax_gradient,
    .expand = softmax_expand,
    .precision = OperandPrecision::kWide,
};

}  // namespace partita
