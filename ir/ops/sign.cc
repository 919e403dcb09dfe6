#include "ir/graph/builder.h"
#include "ir/ops/elementwise.h"

namespace partita {

// -x.
extern const OpDef kNeg = {
    .name = "neg",
    .formula_of = linear_formula,
    .infer = same_number_type,
    .flops_per_point = 1,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> { return {use.b.neg(use.gradients[0])}; },
    .scalar = unary_body<ScalarOp::kNeg>,
};

// |x|; gradient 0 at 0.
extern const OpDef kAbs = {
    .name = "abs",
    .formula_of = nonlinear_formula,
    .infer = same_number_type,
    .flops_per_point = 1,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      return {use.b.mul(use.gradients[0], use.b.emit("sign", {use.inputs[0]}))};
    },
    .scalar = unary_body<ScalarOp::kAbs>,
};

// -1, 0 or 1; NaN stays NaN. Its gradient is zero.
extern const OpDef kSign = {
    .name = "sign",
    .formula_of = nonlinear_formula,
    .infer = same_number_type,
    .flops_per_point = 1,
    .gradient = [](const OpUse&) -> std::vector<ValueId> { return {kNoValue}; },
    .scalar = [](ScalarBuilder& s, const OpView&, const Scalars& x) -> Scalars {
      Scalar zero = s.like(x[0], 0), one = s.like(x[0], 1);
      Scalar not_positive = is_unsigned(s.type(x[0]))
                                ? x[0]
                                : s.select(s.compare(ScalarOp::kLt, x[0], zero), s.unary(ScalarOp::kNeg, one), x[0]);
      return {s.select(s.compare(ScalarOp::kLt, zero, x[0]), one, not_positive)};
    },
};

}  // namespace partita
