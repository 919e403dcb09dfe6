// What elementwise definitions share: checks and formulas for operands that broadcast as in NumPy.
#pragma once

#include <string>

#include "ir/op/op_def.h"

namespace partita {

// The formula of an elementwise use of any rank. `linear` has one character per operand: ' ' not linear, '~' linear on
// its own, '1'…'9' jointly linear.
std::string elementwise_formula(const OpView& use, std::string_view linear = "");
std::string nonlinear_formula(const OpView& use);
// "~1 …, ~1 … -> …" (sums) and "~ …, ~ … -> …" (products) and "~ …, … -> …" (linear in the first operand).
std::string sum_formula(const OpView& use);
std::string product_formula(const OpView& use);
std::string linear_formula(const OpView& use);

// All operands of one element type; the result has it too. `_float`: and it is a float type.
absl::StatusOr<std::vector<TensorType>> same_type(const OpView& use);
absl::StatusOr<std::vector<TensorType>> same_float_type(const OpView& use);
// … a float or integer type; bool or an integer type; an unsigned integer type.
absl::StatusOr<std::vector<TensorType>> same_number_type(const OpView& use);
absl::StatusOr<std::vector<TensorType>> same_bits_type(const OpView& use);
absl::StatusOr<std::vector<TensorType>> same_unsigned_type(const OpView& use);
// One element type in, bool out.
absl::StatusOr<std::vector<TensorType>> to_bool(const OpView& use);
// The broadcast shape of the operands; InvalidArgument with the shapes where they do not fit.
absl::StatusOr<Shape> broadcast_all(const OpView& use);

// The other operand where one is a constant of one element, `neutral`, and the shapes agree; else kNoValue.
ValueId other_than(const OpUse& use, double neutral);

// Bodies of a single operation.
template <ScalarOp op>
Scalars unary_body(ScalarBuilder& s, const OpView&, const Scalars& x) {
  return {s.unary(op, x[0])};
}
template <ScalarOp op>
Scalars binary_body(ScalarBuilder& s, const OpView&, const Scalars& x) {
  return {s.binary(op, x[0], x[1])};
}
template <ScalarOp op>
Scalars compare_body(ScalarBuilder& s, const OpView&, const Scalars& x) {
  return {s.compare(op, x[0], x[1])};
}
template <ScalarOp op>
Scalars predicate_body(ScalarBuilder& s, const OpView&, const Scalars& x) {
  return {s.predicate(op, x[0])};
}

}  // namespace partita
