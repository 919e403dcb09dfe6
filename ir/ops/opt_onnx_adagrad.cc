#include "ir/ops/optimizer.h"

namespace partita {
namespace {
constexpr UpdateSignature kSignature{3, "ft", 2};
}  // namespace

// ai.onnx.preview.training Adagrad: (p, g, h, r, t) -> p', h'; r is the rate, t the update count, which starts at 0.
// With g' = g + norm_coefficient p: r' = r / (1 + t decay_factor), h' = h + g'^2, p' = p - r' g' / (sqrt(h') +
// epsilon).
extern const OpDef kOptOnnxAdagrad = {
    .name = "opt_onnx_adagrad",
    .min_inputs = 5,
    .max_inputs = 5,
    .attributes = "f decay_factor?, f epsilon, f norm_coefficient?",
    .formula_of = [](const OpView& use) { return update_formula(use, kSignature); },
    .infer = [](const OpView& use) { return update_types(use, kSignature); },
    .flops_per_point = 18,
    .scalar = [](ScalarBuilder& s, const OpView& use, const Scalars& x) -> Scalars {
      Update u(s, use, x);
      double decay = use.attrs.f("decay_factor", 0);
      Scalar p = u.in(0), g = u.decayed(u.in(1), p, "norm_coefficient"), r = u.in(3);
      Scalar rate = decay == 0 ? r : u.div(r, u.add(u.number(1), u.mul(u.in(4), u.number(decay))));
      Scalar h = u.add(u.in(2), u.mul(g, g));
      return u.out({u.sub(p, u.div(u.mul(rate, g), u.add(u.sqrt(h), u.attribute("epsilon")))), h});
    },
};

}  // namespace partita
