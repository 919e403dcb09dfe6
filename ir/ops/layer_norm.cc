#include "ir/ops/norm.h"
#include "ir/ops/wide.h"

namespace partita {
namespace {

std::vector<ValueId> layer_norm_expand(const OpUse& use) {
  Builder& b = use.b;
  auto dims = norm_dims(use);
  ValueId x = widen(b, use.inputs[0]);
  ValueId mean = b.mean(x, dims, true), centered = b.sub(x, mean);
  ValueId variance = b.mean(b.mul(centered, centered), dims, true);
  ValueId rstd = b.emit("rsqrt", {b.add_scalar(variance, use.attrs.f("epsilon"))});
  ValueId y = b.mul(b.mul(centered, rstd), widen(b, use.inputs[1]));
  if (use.inputs.size() > 2 && use.inputs[2] != kNoValue) y = b.add(y, widen(b, use.inputs[2]));
  return {b.cast(y, use.types[0].dtype), mean, rstd};
}

// With xhat = (x - mean) rstd and h = g scale: dx = rstd (h - mean(h) - xhat mean(h xhat)), dscale = sum(g xhat), dbias
// = sum(g). A gradient of the mean is spread over the row; one of rstd goes along -rstd^2 xhat.
std::vector<ValueId> layer_norm_gradient(const OpUse& use) {
  Builder& b = use.b;
  auto dims = norm_dims(use);
  double n = norm_size(use);
  ValueId mean = use.outputs[1], rstd = use.outputs[2];
  ValueId xhat = b.mul(b.sub(widen(b, use.inputs[0]), mean), rstd);
  std::vector<ValueId> result(use.inputs.size(), kNoValue);
  ValueId dx = kNoValue;
  auto add = [&](ValueId term) { dx = dx == kNoValue ? term : b.add(dx, term); };
  if (use.gradients[0] != kNoValue) {
    ValueId g = widen(b, use.gradients[0]), gx = b.mul(g, xhat), scale = widen(b, use.inputs[1]);
    ValueId h = b.mul(g, scale), along = b.mean(b.mul(h, xhat), dims, true);
    add(b.mul(rstd, b.sub(b.sub(h, b.mean(h, dims, true)), b.mul(xhat, along))));
    result[1] = b.cast(b.sum_to(gx, use.types[1].shape), use.types[1].dtype);
    if (use.inputs.size() > 2 && use.inputs[2] != kNoValue)
      result[2] = b.cast(b.sum_to(g, use.types[2].shape), use.types[2].dtype);
  }
  if (use.gradients[2] != kNoValue) add(b.mul(xhat, b.mul(b.scale(use.gradients[2], -1 / n), b.mul(rstd, rstd))));
  if (use.gradients[1] != kNoValue) add(b.broadcast_to(b.scale(use.gradients[1], 1 / n), use.types[0].shape));
  result[0] = b.cast(dx, use.types[0].dtype);
  return result;
}

}  // namespace

// (x, scale, bias?) -> y = (x - mean) rstd scale + bias over the dimensions from `axis` on, and mean and rstd = 1 /
// sqrt(variance + epsilon) of shape [leading…, 1…] (Ba, Kiros & Hinton 2016; population variance).
extern const OpDef kLayerNorm = {
    .name = "layer_norm",
    .min_inputs = 2,
    .max_inputs = 3,
    .attributes = "i axis, f epsilon",
    .formula_of = [](const OpView& use) { return norm_formula(use, 2); },
    .infer = [](const OpView& use) { return norm_types(use, 2); },
    .flops_per_point = 8,
    .gradient = layer_norm_gradient,
    .expand = layer_norm_expand,
    .precision = OperandPrecision::kWide,
};

}  // namespace partita
