#include "ir/ops/optimizer.h"

namespace partita {
namespace {
constexpr UpdateSignature kSignature{3, "f", 2};
}  // namespace

// Lion (Chen et al. 2023): (p, g, m, lr) -> p', m'. Decay shrinks p by 1 - lr weight_decay first; p' = p - lr
// sign(beta1 m + (1 - beta1) g), m' = beta2 m + (1 - beta2) g.
extern const OpDef kOptLion = {
    .name = "opt_lion",
    .min_inputs = 4,
    .max_inputs = 4,
    .attributes = "f beta1, f beta2, f weight_decay?",
    .formula_of = [](const OpView& use) { return update_formula(use, kSignature); },
    .infer = [](const OpView& use) { return update_types(use, kSignature); },
    .flops_per_point = 12,
    .scalar = [](ScalarBuilder& s, const OpView& use, const Scalars& x) -> Scalars {
      Update u(s, use, x);
      Scalar p = u.in(0), g = u.in(1), m = u.in(2), lr = u.in(3);
      Scalar direction = u.sign(u.average(m, g, use.attrs.f("beta1")));
      return u.out({u.sub(u.shrunk(p, lr), u.mul(lr, direction)), u.average(m, g, use.attrs.f("beta2"))});
    },
};

}  // namespace partita
