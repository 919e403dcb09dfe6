#include "ir/ops/optimizer.h"

namespace partita {
namespace {
constexpr UpdateSignature kSignature{2, "f", 1};
}  // namespace

// torch.optim.SGD without momentum: (p, g, lr) -> p' = p - lr (g + weight_decay p).
extern const OpDef kOptSgd = {
    .name = "opt_sgd",
    .min_inputs = 3,
    .max_inputs = 3,
    .attributes = "f weight_decay?",
    .formula_of = [](const OpView& use) { return update_formula(use, kSignature); },
    .infer = [](const OpView& use) { return update_types(use, kSignature); },
    .flops_per_point = 4,
    .scalar = [](ScalarBuilder& s, const OpView& use, const Scalars& x) -> Scalars {
      Update u(s, use, x);
      Scalar p = u.in(0), g = u.decayed(u.in(1), p, "weight_decay");
      return u.out({u.sub(p, u.mul(u.in(2), g))});
    },
};

}  // namespace partita
