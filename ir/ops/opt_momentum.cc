#include "ir/ops/optimizer.h"

namespace partita {
namespace {
constexpr UpdateSignature kSignature{3, "fb", 2};
}  // namespace

// torch.optim.SGD with momentum: (p, g, m, lr, first) -> p', m'. With g' = g + weight_decay p: m' = momentum m + (1 -
// dampening) g', or g' at the first step; p' = p - lr m', or with nesterov = 1 p - lr (g' + momentum m').
extern const OpDef kOptMomentum = {
    .name = "opt_momentum",
    .min_inputs = 5,
    .max_inputs = 5,
    .attributes = "f momentum, f dampening?, i nesterov?, f weight_decay?",
    .formula_of = [](const OpView& use) { return update_formula(use, kSignature); },
    .infer = [](const OpView& use) { return update_types(use, kSignature); },
    .flops_per_point = 8,
    .scalar = [](ScalarBuilder& s, const OpView& use, const Scalars& x) -> Scalars {
      Update u(s, use, x);
      Scalar p = u.in(0), g = u.decayed(u.in(1), p, "weight_decay"), momentum = u.attribute("momentum");
      double dampening = use.attrs.f("dampening", 0);
      Scalar later = u.add(u.mul(momentum, u.in(2)), dampening == 0 ? g : u.mul(u.number(1 - dampening), g));
      Scalar m = u.select(u.flag(4), g, later);
      Scalar step = use.attrs.i("nesterov", 0) != 0 ? u.add(g, u.mul(momentum, m)) : m;
      return u.out({u.sub(p, u.mul(u.in(3), step)), m});
    },
};

}  // namespace partita
