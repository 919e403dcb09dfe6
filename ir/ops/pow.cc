#include "ir/graph/builder.h"
#include "ir/ops/elementwise.h"

namespace partita {
namespace {

// d/da = b a^(b-1), zero where b is; d/db = a^b log a, zero where a is 0 and b is not negative. A constant exponent
// needs no gradient and gives short forms.
std::vector<ValueId> pow_gradient(const OpUse& use) {
  Builder& b = use.b;
  ValueId g = use.gradients[0], x = use.inputs[0], y = use.inputs[1];
  DType type = use.types[0].dtype;
  if (const Literal* exponent = b.literal(y); exponent && elements(exponent->type.shape) == 1) {
    double e = element_f(*exponent, 0);
    ValueId slope = e == 1   ? b.scalar(type, 1)
                    : e == 2 ? b.scale(x, 2)
                    : e == 0 ? b.scalar(type, 0)
                             : b.scale(b.emit("pow", {x, b.scalar(type, e - 1)}), e);
    return {b.sum_to(b.mul(g, slope), use.types[0].shape), kNoValue};
  }
  ValueId zero = b.scalar(type, 0);
  ValueId slope = b.mul(y, b.emit("pow", {x, b.add_scalar(y, -1)}));
  slope = b.select(b.emit("eq", {y, zero}), zero, slope);
  ValueId log_slope = b.mul(use.outputs[0], b.emit("log", {x}));
  log_slope = b.select(b.emit("and", {b.emit("eq", {x, zero}), b.emit("le", {zero, y})}), zero, log_slope);
  return {b.sum_to(b.mul(g, slope), use.types[0].shape), b.sum_to(b.mul(g, log_slope), use.types[1].shape)};
}

}  // namespace

// a to the power of b. Integers wrap.
extern const OpDef kPow = {
    .name = "pow",
    .min_inputs = 2,
    .max_inputs = 2,
    .formula_of = nonlinear_formula,
    .infer = same_number_type,
    .flops_per_point = 20,
    .gradient = pow_gradient,
    .scalar = binary_body<ScalarOp::kPow>,
    .precision = OperandPrecision::kWide,
};

}  // namespace partita
