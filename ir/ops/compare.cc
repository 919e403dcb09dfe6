#include "ir/graph/builder.h"
#include "ir/ops/elementwise.h"

namespace partita {

// a == b; false where either is NaN, as are lt and le.
extern const OpDef kEq = {
    .name = "eq",
    .min_inputs = 2,
    .max_inputs = 2,
    .formula_of = nonlinear_formula,
    .infer = to_bool,
    .flops_per_point = 1,
    .scalar = compare_body<ScalarOp::kEq>,
};

// a != b; true where either is NaN.
extern const OpDef kNe = {
    .name = "ne",
    .min_inputs = 2,
    .max_inputs = 2,
    .formula_of = nonlinear_formula,
    .infer = to_bool,
    .flops_per_point = 1,
    .scalar = compare_body<ScalarOp::kNe>,
};

// a < b.
extern const OpDef kLt = {
    .name = "lt",
    .min_inputs = 2,
    .max_inputs = 2,
    .formula_of = nonlinear_formula,
    .infer = to_bool,
    .flops_per_point = 1,
    .scalar = compare_body<ScalarOp::kLt>,
};

// a <= b.
extern const OpDef kLe = {
    .name = "le",
    .min_inputs = 2,
    .max_inputs = 2,
    .formula_of = nonlinear_formula,
    .infer = to_bool,
    .flops_per_point = 1,
    .scalar = compare_body<ScalarOp::kLe>,
};

}  // namespace partita
