#include "ir/ops/optimizer.h"

#include <cmath>

#include "base/cat.h"
#include "ir/ops/elementwise.h"
#include "ir/ops/wide.h"

namespace partita {

absl::StatusOr<std::vector<TensorType>> update_types(const OpView& use, const UpdateSignature& signature) {
  const TensorType& p = use.inputs[0];
  if (!is_float(p.dtype)) return absl::InvalidArgumentError(cat("expected a float parameter, found ", to_string(p)));
  for (size_t k = 1; k < use.inputs.size(); ++k) {
    TensorType expected = p;
    if (int s = static_cast<int>(k) - signature.tensors; s >= 0) {
      expected = {signature.scalars[s] == 'f' ? p.dtype : signature.scalars[s] == 'b' ? DType::kBool : DType::kI64, {}};
    }
    if (use.inputs[k] != expected) {
      return absl::InvalidArgumentError(cat("input ", k, " of the update of ", to_string(p), ": expected ",
                                            to_string(expected), ", found ", to_string(use.inputs[k])));
    }
  }
  return std::vector<TensorType>(signature.outputs, p);
}

std::string update_formula(const OpView& use, const UpdateSignature& signature) {
  std::string text = nonlinear_formula(use);
  std::string output = text.substr(text.find("->") + 2);
  for (int k = 1; k < signature.outputs; ++k) append(text, ",", output);
  return text;
}

absl::Status check_range(const OpView& use, std::string_view attribute, double low, double high) {
  double v = use.attrs.f(attribute);
  if (v >= low && v <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(cat("expected ", attribute, " from ", low, " to ", high, ", found ", v));
}

Update::Update(ScalarBuilder& s, const OpView& use, const Scalars& x)
    : s_(s), use_(use), x_(x), narrow_(use.dtype()), wide_(wide_type(use.dtype())) {}

Scalars Update::out(const Scalars& results) {
  Scalars narrow;
  for (Scalar r : results) narrow.push_back(s_.cast(r, narrow_));
  return narrow;
}

Scalar Update::decayed(Scalar g, Scalar p, std::string_view factor) {
  double f = use_.attrs.f(factor, 0);
  return f == 0 ? g : add(g, mul(number(f), p));
}

Scalar Update::sign(Scalar a) {
  Scalar zero = number(0), negative = s_.compare(ScalarOp::kLt, a, zero);
  Scalar not_positive = s_.select(negative, number(-1), a);
  return s_.select(s_.compare(ScalarOp::kLt, zero, a), number(1), not_positive);
}

Scalar Update::correction(double beta, int t) {
  Scalar exponent = mul(s_.cast(x_[t], wide_), number(std::log(beta)));
  return s_.unary(ScalarOp::kNeg, s_.unary(ScalarOp::kExpm1, exponent));
}

}  // namespace partita
