#include "ir/ops/optimizer.h"

namespace partita {
namespace {
constexpr UpdateSignature kSignature{4, "fff", 3};
}  // namespace

// torch.optim.Adam, and AdamW with decoupled = 1: (p, g, m, v, lr, c1, c2) -> p', m', v'; c1 = 1 - beta1^t and c2 = 1 -
// beta2^t at step t = 1, 2, … Decay is added to the gradient (g + weight_decay p), or, decoupled, shrinks p by 1 - lr
// weight_decay first. m' = beta1 m + (1 - beta1) g, v' = beta2 v + (1 - beta2) g^2, p' = p - lr / c1 m' / (sqrt(v') /
// sqrt(c2) + eps).
extern const OpDef kOptAdam = {
    .name = "opt_adam",
    .min_inputs = 7,
    .max_inputs = 7,
    .attributes = "f beta1, f beta2, f eps, f weight_decay?, i decoupled?",
    .formula_of = [](const OpView& use) { return update_formula(use, kSignature); },
    .infer = [](const OpView& use) { return update_types(use, kSignature); },
    .flops_per_point = 24,
    .scalar = [](ScalarBuilder& s, const OpView& use, const Scalars& x) -> Scalars {
      Update u(s, use, x);
      Scalar p = u.in(0), g = u.in(1), lr = u.in(4);
      if (use.attrs.i("decoupled", 0) == 0) {
        g = u.decayed(g, p, "weight_decay");
      } else {
        p = u.shrunk(p, lr);
      }
      Scalar m = u.average(u.in(2), g, use.attrs.f("beta1")), v = u.average(u.in(3), u.mul(g, g), use.attrs.f("beta2"));
      // The step's numbers are one for all elements: by 1 / sqrt(c2), an element has one division fewer.
      Scalar denominator = u.add(u.mul(u.sqrt(v), u.div(u.number(1), u.sqrt(u.in(6)))), u.attribute("eps"));
      return u.out({u.sub(p, u.mul(u.div(lr, u.in(5)), u.div(m, denominator))), m, v});
    },
};

}  // namespace partita
