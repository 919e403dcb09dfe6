#include "ir/graph/builder.h"
#include "ir/ops/elementwise.h"

namespace partita {

// Towards minus infinity. The gradient of all three is zero.
extern const OpDef kFloor = {
    .name = "floor",
    .formula_of = nonlinear_formula,
    .infer = same_float_type,
    .flops_per_point = 1,
    .gradient = [](const OpUse&) -> std::vector<ValueId> { return {kNoValue}; },
    .scalar = unary_body<ScalarOp::kFloor>,
};

// Towards plus infinity.
extern const OpDef kCeil = {
    .name = "ceil",
    .formula_of = nonlinear_formula,
    .infer = same_float_type,
    .flops_per_point = 1,
    .gradient = [](const OpUse&) -> std::vector<ValueId> { return {kNoValue}; },
    .scalar = unary_body<ScalarOp::kCeil>,
};

// To the nearest whole number, halves to even.
extern const OpDef kRound = {
    .name = "round",
    .formula_of = nonlinear_formula,
    .infer = same_float_type,
    .flops_per_point = 1,
    .gradient = [](const OpUse&) -> std::vector<ValueId> { return {kNoValue}; },
    .scalar = unary_body<ScalarOp::kRoundEven>,
};

}  // namespace partita
