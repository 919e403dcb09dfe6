#include "base/cat.h"
#include "ir/ops/optimizer.h"

namespace partita {
namespace {

bool is_centered(const OpView& use) { return use.attrs.i("centered", 0) != 0; }
bool has_momentum(const OpView& use) { return use.attrs.f("momentum", 0) != 0; }
UpdateSignature signature(const OpView& use) {
  const int states = 1 + int{is_centered(use)} + int{has_momentum(use)};
  return {2 + states, "f", 1 + states};
}

absl::StatusOr<std::vector<TensorType>> infer(const OpView& use) {
  const size_t expected = static_cast<size_t>(signature(use).tensors) + 1;
  if (use.inputs.size() == expected) return update_types(use, signature(use));
  return absl::InvalidArgumentError(cat("expected ", expected, " inputs, found ", use.inputs.size()));
}

}  // namespace

// torch.optim.RMSprop: (p, g, v, a where centered, m where momentum is not 0, lr) -> p', v', a', m'. With g' = g +
// weight_decay p: v' = alpha v + (1 - alpha) g'^2, a' = alpha a + (1 - alpha) g', d = sqrt(v' - a'^2) + eps (sqrt(v') +
// eps where not centered), m' = momentum m + g' / d, p' = p - lr m' (p - lr g' / d without momentum).
extern const OpDef kOptRmsprop = {
    .name = "opt_rmsprop",
    .min_inputs = 4,
    .max_inputs = 6,
    .attributes = "f alpha, f eps, f momentum?, i centered?, f weight_decay?",
    .formula_of = [](const OpView& use) { return update_formula(use, signature(use)); },
    .infer = infer,
    .flops_per_point = 20,
    .scalar = [](ScalarBuilder& s, const OpView& use, const Scalars& x) -> Scalars {
      Update u(s, use, x);
      const double alpha = use.attrs.f("alpha");
      Scalar p = u.in(0), g = u.decayed(u.in(1), p, "weight_decay"), v = u.average(u.in(2), u.mul(g, g), alpha);
      Scalars states = {v};
      Scalar variance = v;
      if (is_centered(use)) {
        Scalar a = u.average(u.in(3), g, alpha);
        states.push_back(a);
        variance = u.sub(v, u.mul(a, a));
      }
      Scalar step = u.div(g, u.add(u.sqrt(variance), u.attribute("eps")));
      if (has_momentum(use)) {
        step = u.add(u.mul(u.attribute("momentum"), u.in(signature(use).tensors - 1)), step);
        states.push_back(step);
      }
      Scalars results = {u.sub(p, u.mul(u.in(signature(use).tensors), step))};
      results.insert(results.end(), states.begin(), states.end());
      return u.out(results);
    },
};

}  // namespace partita
