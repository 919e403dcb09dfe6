#include <cmath>
#include <numbers>

#include "ir/graph/builder.h"
#include "ir/ops/elementwise.h"

namespace partita {
namespace {

constexpr double kTanhScale = 0.7978845608028654;  // sqrt(2/pi)
constexpr double kCubic = 0.044715;

// Normal distribution function and density at x, or the tanh approximation's stand-ins for them: gelu = x * cdf, gelu'
// = cdf + x * density.
struct Parts {
  Scalar cdf, density;
};

Parts gelu_parts(ScalarBuilder& s, bool approximate, Scalar x) {
  Scalar half = s.like(x, 0.5), one = s.like(x, 1);
  if (!approximate) {
    // Both of x / sqrt(2): erf has e^-y^2 in it, which the density then shares.
    Scalar y = s.mul(x, s.like(x, std::numbers::sqrt2 / 2));
    Scalar cdf = s.mul(half, s.add(one, s.unary(ScalarOp::kErf, y)));
    Scalar e = s.unary(ScalarOp::kExp, s.unary(ScalarOp::kNeg, s.mul(y, y)));
    return {cdf, s.mul(e, s.like(x, 0.3989422804014327))};  // 1 / sqrt(2 pi)
  }
  Scalar x2 = s.mul(x, x);
  // (1 + tanh u) / 2 is sigmoid(2u): by e^-|2u| both it and 1 less it come out without loss, and nothing overflows.
  Scalar z = s.mul(s.like(x, 2 * kTanhScale), s.mul(x, s.add(one, s.mul(s.like(x, kCubic), x2))));
  Scalar e = s.unary(ScalarOp::kExp, s.unary(ScalarOp::kNeg, s.unary(ScalarOp::kAbs, z)));
  Scalar large = s.div(one, s.add(one, e)), small = s.mul(e, large);
  Scalar slope = s.mul(s.like(x, 2 * kTanhScale), s.add(one, s.mul(s.like(x, 3 * kCubic), x2)));
  return {s.select(s.compare(ScalarOp::kLt, z, s.like(x, 0)), small, large), s.mul(s.mul(small, large), slope)};
}

}  // namespace

// x * Phi(x); attribute approximate = 1: the tanh form of Hendrycks & Gimpel 2016.
extern const OpDef kGelu = {
    .name = "gelu",
    .attributes = "i approximate?",
    .formula_of = nonlinear_formula,
    .infer = same_float_type,
    .flops_per_point = 10,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      return {use.b.emit("gelu_grad", {use.gradients[0], use.inputs[0]}, use.attrs)};
    },
    .scalar = [](ScalarBuilder& s, const OpView& use, const Scalars& x) -> Scalars {
      return {s.mul(x[0], gelu_parts(s, use.attrs.i("approximate", 0) != 0, x[0]).cdf)};
    },
};

// (gradient of the result, x) -> gradient of x.
extern const OpDef kGeluGrad = {
    .name = "gelu_grad",
    .min_inputs = 2,
    .max_inputs = 2,
    .attributes = "i approximate?",
    .formula_of = linear_formula,
    .infer = same_float_type,
    .flops_per_point = 20,
    .scalar = [](ScalarBuilder& s, const OpView& use, const Scalars& x) -> Scalars {
      Parts p = gelu_parts(s, use.attrs.i("approximate", 0) != 0, x[1]);
      return {s.mul(x[0], s.add(p.cdf, s.mul(x[1], p.density)))};
    },
};

}  // namespace partita
