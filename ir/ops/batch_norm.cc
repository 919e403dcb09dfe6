#include <cmath>

#include "base/cat.h"
#include "ir/builder.h"
#include "ir/ops/wide.h"

namespace partita {
namespace {

absl::StatusOr<std::vector<TensorType>> batch_norm_types(const OpView& use) {
  const TensorType& x = use.inputs[0];
  double epsilon = use.attrs.f("epsilon");
  if (!is_float(x.dtype) || x.rank() < 2)
    return absl::InvalidArgumentError(cat("expected a float tensor [n, channels, …], found ", to_string(x)));
  if (!std::isfinite(epsilon) || epsilon < 0)
    return absl::InvalidArgumentError(cat("expected an epsilon of at least 0, found ", epsilon));
  for (int k = 1; k < 3; ++k) {
    const TensorType& t = use.inputs[k];
    if (t.shape != Shape{x.shape[1]} || (t.dtype != x.dtype && t.dtype != wide_type(x.dtype))) {
      return absl::InvalidArgumentError(cat("expected ", k == 1 ? "scale " : "bias ",
                                            to_string(TensorType{x.dtype, {x.shape[1]}}), " for ", to_string(x),
                                            ", found ", to_string(t)));
    }
  }
  TensorType statistic{wide_type(x.dtype), {x.shape[1]}};
  return std::vector<TensorType>{x, statistic, statistic};
}

// "n^ c i0^ i1^, c, c -> n c i0 i1, c, c"
std::string batch_norm_formula(const OpView& use) {
  std::string spatial;
  for (int d = 2; d < use.rank(); ++d) append(spatial, " i", d - 2, "^");
  return cat("n^ c", spatial, ", c, c -> n c", spatial, ", c, c");
}

// All dimensions but the channels'.
std::vector<int64_t> batch_dims(const TensorType& x) {
  std::vector<int64_t> dims{0};
  for (int64_t d = 2; d < x.rank(); ++d) dims.push_back(d);
  return dims;
}

// [c] -> [c, 1…], which broadcasts along x.
ValueId per_channel(const OpUse& use, ValueId v) {
  Shape shape(use.types[0].rank() - 1, 1);
  shape[0] = use.types[0].shape[1];
  return use.b.reshape(widen(use.b, v), std::move(shape));
}

std::vector<ValueId> batch_norm_expand(const OpUse& use) {
  Builder& b = use.b;
  auto dims = batch_dims(use.types[0]);
  ValueId x = widen(b, use.inputs[0]);
  ValueId mean = b.mean(x, dims, false), centered = b.sub(x, per_channel(use, mean));
  ValueId variance = b.mean(b.mul(centered, centered), dims, false);
  ValueId rstd = b.emit("rsqrt", {b.add_scalar(variance, use.attrs.f("epsilon"))});
  ValueId factor = b.mul(rstd, widen(b, use.inputs[1]));
  ValueId y = b.add(b.mul(centered, per_channel(use, factor)), per_channel(use, use.inputs[2]));
  return {b.cast(y, use.types[0].dtype), mean, variance};
}

// With n elements a channel, rstd = 1 / sqrt(variance + epsilon) and centered = x - mean:
//   dbias = sum(g), dscale = rstd sum(g centered), dx = scale rstd (g - dbias / n - centered rstd dscale / n),
// and a gradient of the mean is spread over the channel, one of the variance goes along 2 centered / n.
std::vector<ValueId> batch_norm_gradient(const OpUse& use) {
  Builder& b = use.b;
  auto dims = batch_dims(use.types[0]);
  double n = 1;
  for (int64_t d : dims) n *= static_cast<double>(use.types[0].shape[d]);
  ValueId centered = b.sub(widen(b, use.inputs[0]), per_channel(use, use.outputs[1]));
  ValueId dx = kNoValue, dscale = kNoValue, dbias = kNoValue;
  auto add = [&](ValueId term) { dx = dx == kNoValue ? term : b.add(dx, term); };
  if (use.gradients[0] != kNoValue) {
    ValueId g = widen(b, use.gradients[0]),
            rstd = b.emit("rsqrt", {b.add_scalar(use.outputs[2], use.attrs.f("epsilon"))});
    ValueId sum = b.reduce_sum(g, dims, false), along = b.mul(rstd, b.reduce_sum(b.mul(g, centered), dims, false));
    ValueId slope = b.scale(b.mul(rstd, along), 1 / n);
    ValueId inner = b.sub(b.sub(g, per_channel(use, b.scale(sum, 1 / n))), b.mul(centered, per_channel(use, slope)));
    add(b.mul(inner, per_channel(use, b.mul(rstd, widen(b, use.inputs[1])))));
    dscale = b.cast(along, use.types[1].dtype);
    dbias = b.cast(sum, use.types[2].dtype);
  }
  if (use.gradients[2] != kNoValue) add(b.mul(centered, per_channel(use, b.scale(use.gradients[2], 2 / n))));
  if (use.gradients[1] != kNoValue)
    add(b.broadcast_to(per_channel(use, b.scale(use.gradients[1], 1 / n)), use.types[0].shape));
  return {b.cast(dx, use.types[0].dtype), dscale, dbias};
}

}  // namespace

// (x [n, c, …], scale [c], bias [c]) -> y = (x - mean) / sqrt(variance + epsilon) scale + bias, mean [c] and population
// variance [c] of this batch (Ioffe & Szegedy 2015): training mode.
extern const OpDef kBatchNorm = {
    .name = "batch_norm",
    .min_inputs = 3,
    .max_inputs = 3,
    .attributes = "f epsilon",
    .formula_of = batch_norm_formula,
    .infer = batch_norm_types,
    .flops_per_point = 7,
    .gradient = batch_norm_gradient,
    .expand = batch_norm_expand,
    .split_form = batch_norm_expand,
    .precision = OperandPrecision::kAsIs,
};

}  // namespace partita
