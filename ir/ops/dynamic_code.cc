// Numbers of [-1, 1], or of [0, 1], in 8 bits each: the dynamic map of Dettmers (8-Bit Approximations for Parallelism
// in Deep Learning, 2015), as bitsandbytes' create_dynamic_map makes it. Of zero and one, and seven decades from 10^-7
// to 1 between them: 1, 2, 4, …, 64 numbers (2, …, 128 without signs), the middles of as many equal parts of a decade.
// Numbered from 0 to 1, a decade of P numbers begins with the P-th, and the n-th is
//
//   10^-k (0.1 + 0.9 (n - P + 1/2) / P) = slope (n - P + P/9 + 1/2)
#include <array>
#include <cmath>

#include "base/cat.h"
#include "ir/ops/elementwise.h"

namespace partita {
namespace {

constexpr int kDecades = 7;
constexpr double kSignedZero = 127;  // the code of 0; without signs it is 0

// P and slope, as numbers or as what an element has selected.
template <typename Number>
struct Decade {
  Number first, slope;
};

std::array<Decade<double>, kDecades> decades(bool has_sign) {
  std::array<Decade<double>, kDecades> all{};
  for (int i = 0; i < kDecades; ++i) {
    const double first = std::ldexp(has_sign ? 1 : 2, i);
    all[static_cast<size_t>(i)] = {first, 0.9 * std::pow(10, i - kDecades + 1) / first};
  }
  return all;
}
double least_of(const Decade<double>& d) { return d.slope * (d.first / 9 + 0.5); }
double greatest_of(const Decade<double>& d) { return d.slope * (d.first - 1 + d.first / 9 + 0.5); }

bool has_sign(const OpView& use) { return use.attrs.i("signed") != 0; }
// The places of 0 and of 1 in the order of decades.
double place_of_zero(bool has_sign) { return has_sign ? 0 : 1; }
double place_of_one(bool has_sign) { return has_sign ? 128 : 256; }

// That of `x`, where `begins` says which x a decade begins at.
template <typename Begins>
Decade<Scalar> decade_of(ScalarBuilder& s, Scalar x, bool has_sign, Begins begins) {
  const std::array<Decade<double>, kDecades> all = decades(has_sign);
  Decade<Scalar> here{s.like(x, all[0].first), s.like(x, all[0].slope)};
  for (size_t i = 1; i < kDecades; ++i) {
    Scalar inside = s.compare(ScalarOp::kLe, s.like(x, begins(all[i - 1], all[i])), x);
    here.first = s.select(inside, s.like(x, all[i].first), here.first);
    here.slope = s.select(inside, s.like(x, all[i].slope), here.slope);
  }
  return here;
}
// P/9 + 1/2.
Scalar begin_of(ScalarBuilder& s, const Decade<Scalar>& d) {
  return s.add(s.mul(d.first, s.like(d.first, 1.0 / 9)), s.like(d.first, 0.5));
}

// The place of the number that is nearest to `size`, which is not negative.
Scalar nearest_place(ScalarBuilder& s, Scalar size, bool has_sign) {
  const std::array<Decade<double>, kDecades> all = decades(has_sign);
  const Decade<Scalar> d = decade_of(s, size, has_sign, [](const Decade<double>& before, const Decade<double>& next) {
    return (greatest_of(before) + least_of(next)) / 2;
  });
  Scalar within = s.unary(ScalarOp::kRoundEven, s.sub(s.div(size, d.slope), begin_of(s, d)));
  within = s.min(s.max(within, s.like(size, 0)), s.sub(d.first, s.like(size, 1)));
  Scalar none = s.compare(ScalarOp::kLt, size, s.like(size, least_of(all[0]) / 2));
  Scalar one = s.compare(ScalarOp::kLe, s.like(size, (greatest_of(all[kDecades - 1]) + 1) / 2), size);
  Scalar place = s.select(none, s.like(size, place_of_zero(has_sign)), s.add(d.first, within));
  return s.select(one, s.like(size, place_of_one(has_sign)), place);
}

Scalars code_body(ScalarBuilder& s, const OpView& use, const Scalars& x) {
  if (!has_sign(use)) return {s.cast(s.sub(nearest_place(s, x[0], false), s.like(x[0], 1)), DType::kU8)};
  Scalar n = nearest_place(s, s.unary(ScalarOp::kAbs, x[0]), true);
  // A code has its number's sign: below zero there is none of 0, and none of -1.
  Scalar below = s.min(s.max(n, s.like(n, 1)), s.like(n, place_of_one(true) - 1)), zero = s.like(n, kSignedZero);
  Scalar negative = s.compare(ScalarOp::kLt, x[0], s.like(x[0], 0));
  return {s.cast(s.select(negative, s.sub(zero, below), s.add(zero, n)), DType::kU8)};
}

Scalars value_body(ScalarBuilder& s, const OpView& use, const Scalars& x) {
  const bool with_sign = has_sign(use);
  const DType to = use.attrs.dtype("to"), wide = to == DType::kF64 ? to : DType::kF32;
  Scalar code = s.cast(x[0], wide), shifted = s.sub(code, s.like(code, kSignedZero));
  Scalar n = with_sign ? s.unary(ScalarOp::kAbs, shifted) : s.add(code, s.like(code, 1));
  const Decade<Scalar> d =
      decade_of(s, n, with_sign, [](const Decade<double>&, const Decade<double>& next) { return next.first; });
  Scalar value = s.mul(d.slope, s.add(s.sub(n, d.first), begin_of(s, d)));
  value = s.select(s.compare(ScalarOp::kLe, n, s.like(n, place_of_zero(with_sign))), s.like(n, 0), value);
  value = s.select(s.compare(ScalarOp::kLe, s.like(n, place_of_one(with_sign)), n), s.like(n, 1), value);
  if (with_sign)
    value = s.select(s.compare(ScalarOp::kLt, shifted, s.like(n, 0)), s.unary(ScalarOp::kNeg, value), value);
  return {s.cast(value, to)};
}

absl::StatusOr<std::vector<TensorType>> code_types(const OpView& use) {
  if (!is_float(use.dtype()))
    return absl::InvalidArgumentError(cat("expected numbers of a float type, found ", to_string(use.inputs[0])));
  return std::vector<TensorType>{{DType::kU8, use.shape(0)}};
}

absl::StatusOr<std::vector<TensorType>> value_types(const OpView& use) {
  if (use.dtype() != DType::kU8 || !is_float(use.attrs.dtype("to")))
    return absl::InvalidArgumentError(cat("expected codes of type u8 and a float type `to`, found ",
                                          to_string(use.inputs[0]), " and ", dtype_name(use.attrs.dtype("to"))));
  return std::vector<TensorType>{{use.attrs.dtype("to"), use.shape(0)}};
}

}  // namespace

// The code, u8, of the number of the map that is nearest to x, and of x's sign; attribute `signed`: 0 or 1, for the map
// of [0, 1] or of [-1, 1].
extern const OpDef kDynamicCode = {
    .name = "dynamic_code",
    .attributes = "i signed",
    .formula_of = nonlinear_formula,
    .infer = code_types,
    .flops_per_point = 40,
    .scalar = code_body,
    .precision = OperandPrecision::kAsIs,
};

// The number of a code, in the float type `to`.
extern const OpDef kDynamicValue = {
    .name = "dynamic_value",
    .attributes = "i signed, dtype to",
    .formula_of = nonlinear_formula,
    .infer = value_types,
    .flops_per_point = 30,
    .scalar = value_body,
    .precision = OperandPrecision::kAsIs,
};

}  // namespace partita
