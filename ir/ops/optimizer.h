// What the optimizer updates share. Each is elementwise over a parameter and its states, with hyper-parameters as
// attributes and what changes from step to step as rank-0 inputs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ir/op/op_def.h"

namespace partita {

// Inputs: `tensors` of one float type and shape (parameter, gradient, states), then one rank-0 input for each character
// of `scalars`: 'f' of the parameter's type, 'b' bool, 't' i64. `outputs` outputs of the parameter's type and shape.
struct UpdateSignature {
  int tensors;
  std::string_view scalars;
  int outputs;
};
absl::StatusOr<std::vector<TensorType>> update_types(const OpView& use, const UpdateSignature& signature);
// Parallel in every dimension.
std::string update_formula(const OpView& use, const UpdateSignature& signature);
// InvalidArgument where the attribute is not in [low, high].
absl::Status check_range(const OpView& use, std::string_view attribute, double low, double high);

// Arithmetic of an update in f32 (f64 for an f64 parameter), whatever the type of the operands.
class Update {
 public:
  Update(ScalarBuilder& s, const OpView& use, const Scalars& x);

  // Input `k` as a float; results in the parameter's type.
  Scalar in(int k) { return s_.cast(x_[k], wide_); }
  Scalars out(const Scalars& results);

  Scalar number(double v) { return s_.constant(wide_, v); }
  Scalar attribute(std::string_view name) { return number(use_.attrs.f(name)); }
  Scalar add(Scalar a, Scalar b) { return s_.add(a, b); }
  Scalar sub(Scalar a, Scalar b) { return s_.sub(a, b); }
  Scalar mul(Scalar a, Scalar b) { return s_.mul(a, b); }
  Scalar div(Scalar a, Scalar b) { return s_.div(a, b); }
  Scalar sqrt(Scalar a) { return s_.unary(ScalarOp::kSqrt, a); }
  Scalar select(Scalar c, Scalar a, Scalar b) { return s_.select(c, a, b); }

  // g + factor p, or g where the attribute `factor` is 0.
  Scalar decayed(Scalar g, Scalar p, std::string_view factor);
  // p (1 - lr weight_decay), as AdamW decays.
  Scalar shrunk(Scalar p, Scalar lr) {
    const double decay = use_.attrs.f("weight_decay", 0);
    return decay == 0 ? p : mul(p, sub(number(1), mul(lr, number(decay))));
  }
  // -1, 0 or 1.
  Scalar sign(Scalar a);
  // beta old + (1 - beta) now.
  Scalar average(Scalar old, Scalar now, double beta) {
    return add(mul(number(beta), old), mul(number(1 - beta), now));
  }
  // 1 - beta^t of the i64 input `t`, accurate for beta near 1.
  Scalar correction(double beta, int t);
  // Whether the i64 input `t` is positive.
  Scalar positive(int t) { return s_.compare(ScalarOp::kLt, s_.constant_i(DType::kI64, 0), x_[t]); }
  Scalar flag(int k) { return x_[k]; }

 private:
  ScalarBuilder& s_;
  const OpView& use_;
  const Scalars& x_;
  DType narrow_, wide_;
};

}  // namespace partita
