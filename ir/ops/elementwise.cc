#include "ir/ops/elementwise.h"

#include "base/cat.h"
#include "base/status.h"
#include "ir/graph/builder.h"

namespace partita {

absl::StatusOr<Shape> broadcast_all(const OpView& use) {
  Shape shape;
  std::string found;
  for (size_t k = 0; k < use.inputs.size(); ++k) {
    append(found, k ? " and " : "", to_string(use.inputs[k].shape));
    auto next = broadcast_shapes(shape, use.inputs[k].shape);
    if (!next) return absl::InvalidArgumentError(cat("expected shapes that broadcast together, found ", found));
    shape = *std::move(next);
  }
  return shape;
}

std::string elementwise_formula(const OpView& use, std::string_view linear) {
  auto shape = broadcast_all(use);
  int rank = shape.ok() ? static_cast<int>(shape->size()) : 0;
  std::string text;
  for (size_t k = 0; k < use.inputs.size(); ++k) {
    if (k) text += ", ";
    if (k < linear.size() && linear[k] != ' ') {
      text += '~';
      if (linear[k] != '~') text += linear[k];
      text += ' ';
    }
    const Shape& s = use.inputs[k].shape;
    if (s.empty()) text += ". ";
    for (size_t d = 0; d < s.size(); ++d) {
      int axis = rank - static_cast<int>(s.size()) + static_cast<int>(d);
      text += s[d] == 1 && (*shape)[axis] != 1 ? "* " : factor_name(axis) + " ";
    }
  }
  text += "->";
  for (int d = 0; d < rank; ++d) text += " " + factor_name(d);
  return text;
}

std::string nonlinear_formula(const OpView& use) { return elementwise_formula(use); }
std::string sum_formula(const OpView& use) { return elementwise_formula(use, "11111111"); }
std::string product_formula(const OpView& use) { return elementwise_formula(use, "~~"); }
std::string linear_formula(const OpView& use) { return elementwise_formula(use, "~"); }

absl::StatusOr<std::vector<TensorType>> same_type(const OpView& use) {
  PARTITA_ASSIGN_OR_RETURN(Shape shape, broadcast_all(use));
  for (const TensorType& t : use.inputs) {
    if (t.dtype != use.dtype()) {
      return absl::InvalidArgumentError(
          cat("expected operands of one element type, found ", dtype_name(use.dtype()), " and ", dtype_name(t.dtype)));
    }
  }
  if (!checked_elements(shape))
    return absl::InvalidArgumentError(cat("a result of ", to_string(shape), " elements is too large"));
  return std::vector<TensorType>{{use.dtype(), std::move(shape)}};
}

absl::StatusOr<std::vector<TensorType>> same_float_type(const OpView& use) {
  if (!is_float(use.dtype()))
    return absl::InvalidArgumentError(cat("expected a float type, found ", dtype_name(use.dtype())));
  return same_type(use);
}

absl::StatusOr<std::vector<TensorType>> same_number_type(const OpView& use) {
  if (!is_float(use.dtype()) && !is_integer(use.dtype()))
    return absl::InvalidArgumentError(cat("expected a float or integer type, found ", dtype_name(use.dtype())));
  return same_type(use);
}

absl::StatusOr<std::vector<TensorType>> same_bits_type(const OpView& use) {
  if (is_float(use.dtype()))
    return absl::InvalidArgumentError(cat("expected bool or an integer type, found ", dtype_name(use.dtype())));
  return same_type(use);
}

absl::StatusOr<std::vector<TensorType>> same_unsigned_type(const OpView& use) {
  if (!is_integer(use.dtype()) || !is_unsigned(use.dtype())) {
    return absl::InvalidArgumentError(cat("expected an unsigned integer type, found ", dtype_name(use.dtype())));
  }
  return same_type(use);
}

absl::StatusOr<std::vector<TensorType>> to_bool(const OpView& use) {
  PARTITA_ASSIGN_OR_RETURN(std::vector<TensorType> types, same_type(use));
  types[0].dtype = DType::kBool;
  return types;
}

ValueId other_than(const OpUse& use, double neutral) {
  Builder& b = use.b;
  for (int k = 0; k < 2; ++k) {
    const Literal* l = b.literal(use.inputs[k]);
    ValueId other = use.inputs[1 - k];
    if (l != nullptr && elements(l->type.shape) == 1 && is_float(l->type.dtype) && element_f(*l, 0) == neutral &&
        l->type.rank() <= b.rank(other) && b.graph().producer(other) != nullptr)
      return other;
  }
  return kNoValue;
}

}  // namespace partita
