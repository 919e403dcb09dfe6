#include "ir/graph/builder.h"
#include "ir/ops/elementwise.h"

namespace partita {

// e^x.
extern const OpDef kExp = {
    .name = "exp",
    .formula_of = nonlinear_formula,
    .infer = same_float_type,
    .flops_per_point = 10,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> { return {use.b.mul(use.gradients[0], use.outputs[0])}; },
    .scalar = unary_body<ScalarOp::kExp>,
    .precision = OperandPrecision::kWide,
};

// e^x - 1, exact near 0.
extern const OpDef kExpm1 = {
    .name = "expm1",
    .formula_of = nonlinear_formula,
    .infer = same_float_type,
    .flops_per_point = 12,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      return {use.b.mul(use.gradients[0], use.b.add_scalar(use.outputs[0], 1))};
    },
    .scalar = unary_body<ScalarOp::kExpm1>,
    .precision = OperandPrecision::kWide,
};

// Natural logarithm.
extern const OpDef kLog = {
    .name = "log",
    .formula_of = nonlinear_formula,
    .infer = same_float_type,
    .flops_per_point = 10,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> { return {use.b.div(use.gradients[0], use.inputs[0])}; },
    .scalar = unary_body<ScalarOp::kLog>,
    .precision = OperandPrecision::kWide,
};

// log(1 + x), exact near 0.
extern const OpDef kLog1p = {
    .name = "log1p",
    .formula_of = nonlinear_formula,
    .infer = same_float_type,
    .flops_per_point = 12,
    .gradient = [](const OpUse& use) -> std::vector<ValueId> {
      return {use.b.div(use.gradients[0], use.b.add_scalar(use.inputs[0], 1))};
    },
    .scalar = unary_body<ScalarOp::kLog1p>,
    .precision = OperandPrecision::kWide,
};

}  // namespace partita
