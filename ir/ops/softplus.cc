#include "ir/graph/builder.h"
#include "ir/ops/elementwise.h"

namespace partita {

// log(1 + e^x) = max(x, 0) + log1p(e^-|x|), without overflow.
extern const OpDef kSoftplus = {
    .name = "softplus",
    .formula_of = nonlinear_formula,
    .infer = same_float_type,
    .flops_per_point = 20,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      return {use.b.mul(use.gradients[0], use.b.emit("sigmoid", {use.inputs[0]}))};
    },
    .scalar = [](ScalarBuilder& s, const OpView&, const Scalars& x) -> Scalars {
      Scalar e = s.unary(ScalarOp::kExp, s.unary(ScalarOp::kNeg, s.unary(ScalarOp::kAbs, x[0])));
      return {s.add(s.max(x[0], s.like(x[0], 0)), s.unary(ScalarOp::kLog1p, e))};
    },
    .precision = OperandPrecision::kWide,
};

}  // namespace partita
