#include "ir/ops/norm.h"
#include "ir/ops/wide.h"

namespace partita {
namespace {

std::vector<ValueId> rms_norm_expand(const OpUse& use) {
  Builder& b = use.b;
  ValueId x = widen(b, use.inputs[0]);
  ValueId rstd = b.emit("rsqrt", {b.add_scalar(b.mean(b.mul(x, x), norm_dims(use), true), use.attrs.f("epsilon"))});
  ValueId y = b.mul(b.mul(x, rstd), widen(b, use.inputs[1]));
  return {b.cast(y, use.types[0].dtype), rstd};
}

// With xhat = x rstd and h = g scale: dx = rstd (h - xhat mean(h xhat)), dscale = sum(g xhat). A gradient of rstd goes
// along -rstd^2 xhat.
std::vector<ValueId> rms_norm_gradient(const OpUse& use) {
  Builder& b = use.b;
  auto dims = norm_dims(use);
  ValueId rstd = use.outputs[1], xhat = b.mul(widen(b, use.inputs[0]), rstd);
  ValueId dx = kNoValue, dscale = kNoValue;
  if (use.gradients[0] != kNoValue) {
    ValueId g = widen(b, use.gradients[0]), h = b.mul(g, widen(b, use.inputs[1]));
    dx = b.mul(rstd, b.sub(h, b.mul(xhat, b.mean(b.mul(h, xhat), dims, true))));
    dscale = b.cast(b.sum_to(b.mul(g, xhat), use.types[1].shape), use.types[1].dtype);
  }
  if (use.gradients[1] != kNoValue) {
    ValueId term = b.mul(xhat, b.mul(b.scale(use.gradients[1], -1 / norm_size(use)), b.mul(rstd, rstd)));
    dx = dx == kNoValue ? term : b.add(dx, term);
  }
  return {b.cast(dx, use.types[0].dtype), dscale};
}

}  // namespace

// (x, scale) -> y = x rstd scale, rstd = 1 / sqrt(mean(x^2) + epsilon) over the dimensions from `axis` on, of shape
// [leading…, 1…] (Zhang & Sennrich 2019).
extern const OpDef kRmsNorm = {
    .name = "rms_norm",
    .min_inputs = 2,
    .max_inputs = 2,
    .attributes = "i axis, f epsilon",
    .formula_of = [](const OpView& use) { return norm_formula(use, 1); },
    .infer = [](const OpView& use) { return norm_types(use, 1); },
    .flops_per_point = 5,
    .gradient = rms_norm_gradient,
    .expand = rms_norm_expand,
    .precision = OperandPrecision::kWide,
};

}  // namespace partita
