#include "tools/proof/trials/bounded_value.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ir/op/scalar_points.h"

namespace partita {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::infinity();
constexpr double kFunctionUnits =
    4;                        // half units that exp, tanh, … may be off by (tests/codegen/llvm: below two units)
constexpr double kSlack = 2;  // of what a chain of roundings is bounded by

bool is_narrow(DType type) { return type == DType::kF16 || type == DType::kBF16; }

double largest(DType type) {
  return type == DType::kF64   ? std::numeric_limits<double>::max()
         : type == DType::kF16 ? 65504
                               : static_cast<double>(std::numeric_limits<float>::max());
}
// Half the distance between the smallest numbers.
double least(DType type) { return type == DType::kF64 ? 0x1p-1074 : type == DType::kF16 ? 0x1p-25 : 0x1p-134; }
// Of what is computed: in 16 bits, or in more.
double least_computed(DType type) { return type == DType::kF64 ? 0x1p-1074 : is_narrow(type) ? least(type) : 0x1p-150; }

// Terms that follow each other in one accumulator, and those of the levels above
// (codegen/llvm/nest_emitter_columns.cc).
double terms_in_row(int64_t count) {
  const double n = static_cast<double>(count);
  return std::min(n, 128 + n / 64);
}

bool is_exact(ScalarOp op) {
  return op == ScalarOp::kNeg || op == ScalarOp::kAbs || op == ScalarOp::kMax || op == ScalarOp::kMin ||
         op == ScalarOp::kFloor || op == ScalarOp::kCeil || op == ScalarOp::kRoundEven || op == ScalarOp::kPowerOfTwo ||
         op == ScalarOp::kMod;
}

// Of the product of a number and how far another may be off.
double times(double x, double off) { return off == 0 ? 0 : std::abs(x) * off; }

ScalarOp operation_of(ReduceKind kind, DType type) {
  switch (kind) {
    case ReduceKind::kSum:
      return type == DType::kBool ? ScalarOp::kOr : ScalarOp::kAdd;
    case ReduceKind::kProd:
      return ScalarOp::kMul;
    case ReduceKind::kMax:
      return ScalarOp::kMax;
    case ReduceKind::kMin:
      return ScalarOp::kMin;
  }
  return ScalarOp::kAdd;
}

}  // namespace

double half_unit(DType type) {
  return type == DType::kF64    ? 0x1p-53
         : type == DType::kF32  ? 0x1p-24
         : type == DType::kF16  ? 0x1p-11
         : type == DType::kBF16 ? 0x1p-8
                                : 0;
}

BoundedOperation::BoundedOperation(const ScalarNode& node, DType from)
    : node_(node), from_(from), inputs_(3, std::vector<ScalarValue>(1)) {
  const auto input = [&](int index, DType type) {
    function_.nodes.push_back({.op = ScalarOp::kInput, .type = type, .index = index});
  };
  input(0, from);
  input(1, from);
  input(2, from);
  function_.nodes.push_back(node);
  ScalarNode& last = function_.nodes.back();
  int k = 0;
  for (int* operand : {&last.a, &last.b, &last.c}) {
    if (*operand >= 0) *operand = k;
    ++k;
  }
}

ScalarValue BoundedOperation::exact(ScalarValue a, ScalarValue b, ScalarValue c) {
  inputs_[0][0] = a;
  inputs_[1][0] = b;
  inputs_[2][0] = c;
  evaluate_points(function_, 1, inputs_, {}, values_);
  return values_.back();
}

// How far the exact result moves where the operands do.
double BoundedOperation::moved(const BoundedValue& a, const BoundedValue& b, double result) {
  if (a.off == 0 && b.off == 0) return 0;
  if (std::isinf(a.off) || std::isinf(b.off)) return kUnknown;
  const double x = a.value.f, y = b.value.f;
  switch (node_.op) {
    case ScalarOp::kAdd:
    case ScalarOp::kSub:
      return a.off + b.off;
    case ScalarOp::kMul:
      // Infinity times what may be zero.
      if ((std::isinf(x) && std::abs(y) <= b.off) || (std::isinf(y) && std::abs(x) <= a.off)) return kUnknown;
      return std::isfinite(result) ? times(x, b.off) + times(y, a.off) + a.off * b.off : 0;
    case ScalarOp::kNeg:
    case ScalarOp::kAbs:
    case ScalarOp::kCast:
      return a.off;
    case ScalarOp::kMax:
    case ScalarOp::kMin:
      return std::max(a.off, b.off);
    case ScalarOp::kMod:
      return kUnknown;
    case ScalarOp::kDiv:
      if (std::abs(y) <= b.off) return kUnknown;
      break;
    case ScalarOp::kSin:
    case ScalarOp::kCos:
      return std::isfinite(x) ? std::min(a.off, 2.0) : 0;
    case ScalarOp::kTan:
      if (a.off > 1e-3) return kUnknown;
      break;
    default:
      break;
  }
  double most = 0;
  for (double p : {x - a.off, x + a.off}) {
    for (double q : {y - b.off, y + b.off}) {
      const double other = exact({p, 0}, {q, 0}, {}).f;
      if (std::isfinite(other) && std::isfinite(result)) {
        most = std::max(most, std::abs(other - result));
      } else if (std::isnan(other) != std::isnan(result) || (!std::isnan(other) && other != result)) {
        return kUnknown;
      }
    }
  }
  return most;
}

// Whether rounding of the operands may turn what an operation from floats to another type says.
bool BoundedOperation::is_undecided(const BoundedValue& a, const BoundedValue& b, ScalarValue result) {
  if (a.off == 0 && b.off == 0) return false;
  if (std::isinf(a.off) || std::isinf(b.off)) return true;
  if (node_.op == ScalarOp::kIsNan || node_.op == ScalarOp::kIsInf) return false;
  if (node_.op != ScalarOp::kCast) return std::abs(a.value.f - b.value.f) <= a.off + b.off;
  if (node_.type == DType::kBool) return std::abs(a.value.f) <= a.off;
  return exact({a.value.f - a.off, 0}, {}, {}).i != result.i || exact({a.value.f + a.off, 0}, {}, {}).i != result.i;
}

BoundedValue BoundedOperation::select(const BoundedValue& a, const BoundedValue& b, const BoundedValue& c) const {
  BoundedValue r = a.value.i != 0 ? b : c;
  if (a.off == 0) return r;
  const double apart = is_float(node_.type) ? (b.value.f == c.value.f ? 0 : std::abs(b.value.f - c.value.f))
                                            : (b.value.i == c.value.i ? 0 : kUnknown);
  r.off = std::isnan(apart) ? kUnknown : apart + std::max(b.off, c.off);
  return r;
}

BoundedValue BoundedOperation::apply(const BoundedValue& a, const BoundedValue& b, const BoundedValue& c) {
  if (node_.op == ScalarOp::kSelect) return select(a, b, c);
  BoundedValue r{exact(a.value, b.value, c.value), 0};
  double& v = r.value.f;
  if (node_.op == ScalarOp::kConstant) {
    if (is_float(node_.type) && node_.type != DType::kF64) v = static_cast<double>(static_cast<float>(v));
    return r;
  }
  if (!is_float(node_.type)) {
    r.off = is_float(from_) ? (is_undecided(a, b, r.value) ? kUnknown : 0) : std::max(a.off, b.off);
    return r;
  }
  const double by = is_float(from_) ? moved(a, b, v) : a.off;
  if (node_.op == ScalarOp::kCast && is_narrow(node_.type)) return stored(node_.type, {r.value, by});
  if (!std::isfinite(v)) {
    r.off = std::isinf(by) ? kUnknown : 0;
    return r;
  }
  const double units = is_transcendental(node_.op) ? kFunctionUnits : 1;
  r.off = is_exact(node_.op) ? by : by + units * (half_unit(node_.type) * std::abs(v) + least_computed(node_.type));
  // A product that joins the sum it goes into overflows less often than one that does not.
  if (!(std::abs(v) + r.off <= largest(is_narrow(node_.type) ? DType::kF32 : node_.type))) r.off = kUnknown;
  return r;
}

BoundedValue stored(DType type, BoundedValue v) {
  if (!is_float(type) || !std::isfinite(v.value.f)) return v;
  const double size = std::abs(v.value.f);
  v.off += half_unit(type) * size + least(type);
  if (std::isinf(v.off) || size + v.off <= largest(type)) return v;
  // Beyond the last number and half the distance to the next that there is not: infinity.
  if (size - v.off > largest(type) * (1 + half_unit(type))) return {{std::copysign(kUnknown, v.value.f), 0}, 0};
  v.off = kUnknown;
  return v;
}

bool allows(DType type, const BoundedValue& expected, ScalarValue found) {
  if (std::isinf(expected.off)) return true;
  if (!is_float(type)) return found.i == expected.value.i;
  const double v = expected.value.f;
  if (std::isnan(v)) return std::isnan(found.f);
  if (std::isinf(v)) return found.f == v;
  return std::abs(found.f - v) <= kSlack * expected.off;
}

BoundedReduction::BoundedReduction(ReduceKind kind, DType type)
    : type_(type),
      sums_floats_(kind == ReduceKind::kSum && is_float(type)),
      two_({.op = operation_of(kind, type), .type = type, .a = 0, .b = 1}, type) {}

void BoundedReduction::add(const BoundedValue& v) {
  if (sums_floats_) {
    const double x = v.value.f;
    total_.value.f += x;
    total_.off += v.off;
    if (std::isfinite(x)) size_ += std::abs(x);
  } else {
    total_ = count_ == 0 ? v : two_.apply(total_, v, {});
  }
  ++count_;
}

BoundedValue BoundedReduction::result() const {
  if (!sums_floats_) return total_;
  BoundedValue r = total_;
  r.off += size_ * half_unit(type_) * terms_in_row(count_) + least_computed(type_) * static_cast<double>(count_);
  if (!(size_ + r.off <= largest(is_narrow(type_) ? DType::kF32 : type_))) {
    r.off = kUnknown;
  } else if (!std::isfinite(r.value.f)) {
    r.off = 0;
  }
  return r;
}

}  // namespace partita
