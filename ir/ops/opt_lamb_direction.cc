#include "ir/ops/optimizer.h"

namespace partita {
namespace {
constexpr UpdateSignature kSignature{4, "ff", 3};
}  // namespace

// The direction of LAMB (You et al. 2020): (p, g, m, v, c1, c2) -> u, m', v'; c1 = 1 - beta1^t and c2 = 1 - beta2^t at
// step t = 1, 2, … m' = beta1 m + (1 - beta1) g, v' = beta2 v + (1 - beta2) g^2, u = (m' / c1) / (sqrt(v' / c2) + eps)
// + weight_decay p. The step is p - lr |p| / |u| u.
extern const OpDef kOptLambDirection = {
    .name = "opt_lamb_direction",
    .min_inputs = 6,
    .max_inputs = 6,
    .attributes = "f beta1, f beta2, f eps, f weight_decay?",
    .formula_of = [](const OpView& use) { return update_formula(use, kSignature); },
    .infer = [](const OpView& use) { return update_types(use, kSignature); },
    .flops_per_point = 24,
    .scalar = [](ScalarBuilder& s, const OpView& use, const Scalars& x) -> Scalars {
      Update u(s, use, x);
      Scalar g = u.in(1);
      Scalar m = u.average(u.in(2), g, use.attrs.f("beta1")), v = u.average(u.in(3), u.mul(g, g), use.attrs.f("beta2"));
      Scalar direction = u.div(u.div(m, u.in(4)), u.add(u.sqrt(u.div(v, u.in(5))), u.attribute("eps")));
      return u.out({u.decayed(direction, u.in(0), "weight_decay"), m, v});
    },
};

}  // namespace partita
