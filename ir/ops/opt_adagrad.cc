#include "ir/ops/optimizer.h"

namespace partita {
namespace {
constexpr UpdateSignature kSignature{3, "f", 2};
}  // namespace

// torch.optim.Adagrad: (p, g, s, lr) -> p', s'. With g' = g + weight_decay p: s' = s + g'^2, p' = p - lr g' / (sqrt(s')
// + eps). A decay of the rate is in lr.
extern const OpDef kOptAdagrad = {
    .name = "opt_adagrad",
    .min_inputs = 4,
    .max_inputs = 4,
    .attributes = "f eps, f weight_decay?",
    .formula_of = [](const OpView& use) { return update_formula(use, kSignature); },
    .infer = [](const OpView& use) { return update_types(use, kSignature); },
    .flops_per_point = 16,
    .scalar = [](ScalarBuilder& s, const OpView& use, const Scalars& x) -> Scalars {
      Update u(s, use, x);
      Scalar p = u.in(0), g = u.decayed(u.in(1), p, "weight_decay"), sum = u.add(u.in(2), u.mul(g, g));
      return u.out({u.sub(p, u.div(u.mul(u.in(3), g), u.add(u.sqrt(sum), u.attribute("eps")))), sum});
    },
};

}  // namespace partita
