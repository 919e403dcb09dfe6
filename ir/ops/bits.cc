#include "ir/graph/builder.h"
#include "ir/ops/elementwise.h"

namespace partita {

// Logical for bool, bitwise for integers; so are or, xor and not.
extern const OpDef kAnd = {
    .name = "and",
    .min_inputs = 2,
    .max_inputs = 2,
    .formula_of = nonlinear_formula,
    .infer = same_bits_type,
    .flops_per_point = 1,
    .scalar = binary_body<ScalarOp::kAnd>,
};

// a | b.
extern const OpDef kOr = {
    .name = "or",
    .min_inputs = 2,
    .max_inputs = 2,
    .formula_of = nonlinear_formula,
    .infer = same_bits_type,
    .flops_per_point = 1,
    .scalar = binary_body<ScalarOp::kOr>,
};

// a ^ b.
extern const OpDef kXor = {
    .name = "xor",
    .min_inputs = 2,
    .max_inputs = 2,
    .formula_of = nonlinear_formula,
    .infer = same_bits_type,
    .flops_per_point = 1,
    .scalar = binary_body<ScalarOp::kXor>,
};

// ~a.
extern const OpDef kNot = {
    .name = "not",
    .formula_of = nonlinear_formula,
    .infer = same_bits_type,
    .flops_per_point = 1,
    .scalar = unary_body<ScalarOp::kNot>,
};

// a << b of unsigned integers; 0 where b is the width or more.
extern const OpDef kShl = {
    .name = "shl",
    .min_inputs = 2,
    .max_inputs = 2,
    .formula_of = nonlinear_formula,
    .infer = same_unsigned_type,
    .flops_per_point = 1,
    .scalar = binary_body<ScalarOp::kShl>,
};

// a >> b of unsigned integers; 0 where b is the width or more.
extern const OpDef kShr = {
    .name = "shr",
    .min_inputs = 2,
    .max_inputs = 2,
    .formula_of = nonlinear_formula,
    .infer = same_unsigned_type,
    .flops_per_point = 1,
    .scalar = binary_body<ScalarOp::kShr>,
};

}  // namespace partita
