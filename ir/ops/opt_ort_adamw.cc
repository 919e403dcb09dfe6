#include "base/cat.h"
#include "base/status.h"
#include "ir/ops/optimizer.h"

namespace partita {
namespace {

constexpr UpdateSignature kSignature{4, "ft", 3};

absl::StatusOr<std::vector<TensorType>> infer(const OpView& use) {
  PARTITA_RETURN_IF_ERROR(check_range(use, "alpha", 0, 1));
  PARTITA_RETURN_IF_ERROR(check_range(use, "beta", 0, 1));
  int64_t mode = use.attrs.i("adam_mode", 0);
  if (mode != 0 && mode != 1)
    return absl::InvalidArgumentError(cat("expected adam_mode 0 (torch) or 1 (Hugging Face), found ", mode));
  return update_types(use, kSignature);
}

}  // namespace

// com.microsoft AdamWOptimizer (ONNX Runtime training): (p, g, m, v, lr, t) -> p', m', v'; t is the step count after
// its increment, so 1 at the first step. m' = alpha m + (1 - alpha) g, v' = beta v + (1 - beta) g^2, c1 = 1 - alpha^t,
// c2 = 1 - beta^t, both 1 where correct_bias = 0. adam_mode 0: p' = p (1 - lr weight_decay) - lr m' / (c1 (sqrt(v' /
// c2) + epsilon)). adam_mode 1: q = p - lr sqrt(c2) / c1 m' / (sqrt(v') + epsilon), p' = q - lr weight_decay q.
extern const OpDef kOptOrtAdamW = {
    .name = "opt_ort_adamw",
    .min_inputs = 6,
    .max_inputs = 6,
    .attributes = "f alpha, f beta, f epsilon, f weight_decay?, i adam_mode?, i correct_bias?",
    .formula_of = [](const OpView& use) { return update_formula(use, kSignature); },
    .infer = infer,
    .flops_per_point = 26,
    .scalar = [](ScalarBuilder& s, const OpView& use, const Scalars& x) -> Scalars {
      Update u(s, use, x);
      double alpha = use.attrs.f("alpha"), beta = use.attrs.f("beta"), decay = use.attrs.f("weight_decay", 0);
      bool correct = use.attrs.i("correct_bias", 1) != 0;
      Scalar p = u.in(0), g = u.in(1), lr = u.in(4), epsilon = u.attribute("epsilon");
      Scalar m = u.average(u.in(2), g, alpha), v = u.average(u.in(3), u.mul(g, g), beta);
      Scalar c1 = correct ? u.correction(alpha, 5) : u.number(1), c2 = correct ? u.correction(beta, 5) : u.number(1);
      auto decayed = [&](Scalar q) { return decay == 0 ? q : u.sub(q, u.mul(u.mul(lr, u.number(decay)), q)); };
      if (use.attrs.i("adam_mode", 0) == 0) {
        Scalar denominator = u.mul(c1, u.add(u.sqrt(u.div(v, c2)), epsilon));
        return u.out({u.sub(decayed(p), u.div(u.mul(lr, m), denominator)), m, v});
      }
      Scalar rate = u.mul(lr, u.div(u.sqrt(c2), c1));
      return u.out({decayed(u.sub(p, u.div(u.mul(rate, m), u.add(u.sqrt(v), epsilon)))), m, v});
    },
};

}  // namespace partita
