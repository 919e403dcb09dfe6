#include "base/cat.h"
#include "ir/ops/optimizer.h"

namespace partita {
namespace {

constexpr UpdateSignature kSignature{3, "ft", 2};

absl::StatusOr<std::vector<TensorType>> infer(const OpView& use) {
  int64_t mode = use.attrs.i("mode");
  if (mode != 0 && mode != 1)
    return absl::InvalidArgumentError(cat("expected mode 0 (standard) or 1 (nesterov), found ", mode));
  return update_types(use, kSignature);
}

}  // namespace

// ai.onnx.preview.training Momentum: (p, g, v, r, t) -> p', v'; r is the rate, t the update count, which starts at 0.
// With g' = g + norm_coefficient p: v' = alpha v + beta g' (beta taken as 1 where t = 0); p' = p - r v' (mode 0), or p
// - r (g' + alpha v') (mode 1, Nesterov).
extern const OpDef kOptOnnxMomentum = {
    .name = "opt_onnx_momentum",
    .min_inputs = 5,
    .max_inputs = 5,
    .attributes = "f alpha, f beta, i mode, f norm_coefficient?",
    .formula_of = [](const OpView& use) { return update_formula(use, kSignature); },
    .infer = infer,
    .flops_per_point = 9,
    .scalar = [](ScalarBuilder& s, const OpView& use, const Scalars& x) -> Scalars {
      Update u(s, use, x);
      Scalar p = u.in(0), g = u.decayed(u.in(1), p, "norm_coefficient"), alpha = u.attribute("alpha");
      Scalar beta = u.select(u.positive(4), u.attribute("beta"), u.number(1));
      Scalar v = u.add(u.mul(alpha, u.in(2)), u.mul(beta, g));
      Scalar step = use.attrs.i("mode") == 1 ? u.add(g, u.mul(alpha, v)) : v;
      return u.out({u.sub(p, u.mul(u.in(3), step)), v});
    },
};

}  // namespace partita
