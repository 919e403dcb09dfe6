#include "base/status.h"
#include "ir/ops/optimizer.h"

namespace partita {
namespace {

constexpr UpdateSignature kSignature{4, "ft", 3};

absl::StatusOr<std::vector<TensorType>> infer(const OpView& use) {
  PARTITA_RETURN_IF_ERROR(check_range(use, "alpha", 0, 1));
  PARTITA_RETURN_IF_ERROR(check_range(use, "beta", 0, 1));
  return update_types(use, kSignature);
}

}  // namespace

// ai.onnx.preview.training Adam: (p, g, v, h, r, t) -> p', v', h'; r is the rate, t the update count, which starts at
// 0. With g' = g + norm_coefficient p: v' = alpha v + (1 - alpha) g', h' = beta h + (1 - beta) g'^2, r' = r sqrt(1 -
// beta^t) / (1 - alpha^t), or r where t = 0 (no bias correction), p' = (1 - norm_coefficient_post) (p - r' v' /
// (sqrt(h') + epsilon)).
extern const OpDef kOptOnnxAdam = {
    .name = "opt_onnx_adam",
    .min_inputs = 6,
    .max_inputs = 6,
    .attributes = "f alpha, f beta, f epsilon, f norm_coefficient?, f norm_coefficient_post?",
    .formula_of = [](const OpView& use) { return update_formula(use, kSignature); },
    .infer = infer,
    .flops_per_point = 24,
    .scalar = [](ScalarBuilder& s, const OpView& use, const Scalars& x) -> Scalars {
      Update u(s, use, x);
      double alpha = use.attrs.f("alpha"), beta = use.attrs.f("beta"), post = use.attrs.f("norm_coefficient_post", 0);
      Scalar p = u.in(0), g = u.decayed(u.in(1), p, "norm_coefficient"), r = u.in(4);
      Scalar v = u.average(u.in(2), g, alpha), h = u.average(u.in(3), u.mul(g, g), beta);
      Scalar corrected = u.div(u.mul(r, u.sqrt(u.correction(beta, 5))), u.correction(alpha, 5));
      Scalar rate = u.select(u.positive(5), corrected, r);
      Scalar next = u.sub(p, u.mul(rate, u.div(v, u.add(u.sqrt(h), u.attribute("epsilon")))));
      return u.out({post == 0 ? next : u.mul(u.number(1 - post), next), v, h});
    },
};

}  // namespace partita
