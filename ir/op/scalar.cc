#include "ir/op/scalar.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/math/philox.h"
#include "base/status.h"
#include "ir/op/scalar_points.h"

namespace partita {

Scalar ScalarBuilder::push(ScalarNode node) {
  for (size_t k = 0; k < nodes_.size(); ++k) {
    if (nodes_[k] == node) return {static_cast<int>(k)};  // bodies are short: equal nodes are shared by a plain search
  }
  nodes_.push_back(node);
  return {static_cast<int>(nodes_.size()) - 1};
}

Scalar ScalarBuilder::input(int index, DType type) {
  return push({.op = ScalarOp::kInput, .type = type, .index = index});
}

Scalar ScalarBuilder::constant(DType type, double value) {
  if (!is_float(type)) return constant_i(type, static_cast<int64_t>(value));
  return push({.op = ScalarOp::kConstant, .type = type, .f = value});
}

Scalar ScalarBuilder::constant_i(DType type, int64_t value) {
  PARTITA_CHECK(!is_float(type), "an integer type");
  return push({.op = ScalarOp::kConstant, .type = type, .i = value});
}

Scalar ScalarBuilder::index(int dimension) {
  return push({.op = ScalarOp::kIndex, .type = DType::kI64, .index = dimension});
}

Scalar ScalarBuilder::binary(ScalarOp op, Scalar a, Scalar b) {
  PARTITA_CHECK(type(a) == type(b), "scalar operands of one type");
  return push({.op = op, .type = type(a), .a = a.id, .b = b.id});
}

Scalar ScalarBuilder::compare(ScalarOp op, Scalar a, Scalar b) {
  PARTITA_CHECK(type(a) == type(b), "scalar operands of one type");
  return push({.op = op, .type = DType::kBool, .a = a.id, .b = b.id});
}

Scalar ScalarBuilder::unary(ScalarOp op, Scalar a) { return push({.op = op, .type = type(a), .a = a.id}); }
Scalar ScalarBuilder::predicate(ScalarOp op, Scalar a) { return push({.op = op, .type = DType::kBool, .a = a.id}); }

Scalar ScalarBuilder::select(Scalar condition, Scalar a, Scalar b) {
  PARTITA_CHECK(type(condition) == DType::kBool && type(a) == type(b), "select operands");
  return push({.op = ScalarOp::kSelect, .type = type(a), .a = condition.id, .b = a.id, .c = b.id});
}

Scalar ScalarBuilder::cast(Scalar a, DType to) {
  return type(a) == to ? a : push({.op = ScalarOp::kCast, .type = to, .a = a.id});
}

Scalar ScalarBuilder::philox(Scalar counter, Scalar high, int64_t key, int word) {
  return push({.op = ScalarOp::kPhilox, .type = DType::kU32, .a = counter.id, .b = high.id, .index = word, .i = key});
}

Scalar ScalarBuilder::sigmoid(Scalar x) {
  Scalar one = like(x, 1);
  return div(one, add(one, unary(ScalarOp::kExp, unary(ScalarOp::kNeg, x))));
}

namespace {

int64_t wrap(DType t, int64_t v) {
  switch (t) {
    case DType::kBool:
      return v != 0;
    case DType::kI8:
      return static_cast<int8_t>(v);
    case DType::kU8:
      return static_cast<uint8_t>(v);
    case DType::kI16:
      return static_cast<int16_t>(v);
    case DType::kU16:
      return static_cast<uint16_t>(v);
    case DType::kI32:
      return static_cast<int32_t>(v);
    case DType::kU32:
      return static_cast<uint32_t>(v);
    default:
      return v;
  }
}

int64_t saturate(DType t, double v) {
  if (std::isnan(v)) return 0;
  double lo = -9223372036854775808.0, hi = 9223372036854774784.0;
  switch (t) {
    case DType::kI8:
      lo = -128, hi = 127;
      break;
    case DType::kU8:
      lo = 0, hi = 255;
      break;
    case DType::kI16:
      lo = -32768, hi = 32767;
      break;
    case DType::kU16:
      lo = 0, hi = 65535;
      break;
    case DType::kI32:
      lo = -2147483648.0, hi = 2147483647.0;
      break;
    case DType::kU32:
      lo = 0, hi = 4294967295.0;
      break;
    case DType::kU64:
      if (v >= 18446744073709551616.0) return -1;  // all ones
      if (v >= 9223372036854775808.0) return static_cast<int64_t>(static_cast<uint64_t>(v));
      lo = 0;
      break;
    default:
      if (v >= 9223372036854775808.0) return std::numeric_limits<int64_t>::max();
  }
  return static_cast<int64_t>(v < lo ? lo : v > hi ? hi : v);
}

int64_t integer_pow(int64_t base, int64_t exponent) {
  if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent % 2 ? -1 : 1) : 0;
  uint64_t r = 1, b = static_cast<uint64_t>(base);
  for (uint64_t e = static_cast<uint64_t>(exponent); e; e >>= 1, b *= b) {
    if (e & 1) r *= b;
  }
  return static_cast<int64_t>(r);
}

double float_binary(ScalarOp op, double a, double b) {
  switch (op) {
    case ScalarOp::kAdd:
      return a + b;
    case ScalarOp::kSub:
      return a - b;
    case ScalarOp::kMul:
      return a * b;
    case ScalarOp::kDiv:
      return a / b;
    case ScalarOp::kMax:
      return std::isnan(a) ? a : std::isnan(b) ? b : a > b ? a : b;
    case ScalarOp::kMin:
      return std::isnan(a) ? a : std::isnan(b) ? b : a < b ? a : b;
    case ScalarOp::kPow:
      return std::pow(a, b);
    case ScalarOp::kMod:
      return std::fmod(a, b);
    default:
      PARTITA_CHECK(false, "not a float operation");
  }
}

uint64_t zero_extend(DType t, uint64_t v) {
  int64_t bits = 8 * dtype_size(t);
  return bits == 64 ? v : v & ((uint64_t{1} << bits) - 1);
}

int64_t integer_binary(ScalarOp op, DType t, int64_t a, int64_t b) {
  uint64_t ua = static_cast<uint64_t>(a), ub = static_cast<uint64_t>(b);
  bool u64 = t == DType::kU64;
  switch (op) {
    case ScalarOp::kAdd:
      return static_cast<int64_t>(ua + ub);
    case ScalarOp::kSub:
      return static_cast<int64_t>(ua - ub);
    case ScalarOp::kMul:
      return static_cast<int64_t>(ua * ub);
    case ScalarOp::kDiv:
      return b == 0 ? 0 : u64 ? static_cast<int64_t>(ua / ub) : b == -1 ? static_cast<int64_t>(-ua) : a / b;
    case ScalarOp::kMod:
      return b == 0 ? 0 : u64 ? static_cast<int64_t>(ua % ub) : b == -1 ? 0 : a % b;
    case ScalarOp::kMax:
      return u64 ? static_cast<int64_t>(std::max(ua, ub)) : std::max(a, b);
    case ScalarOp::kMin:
      return u64 ? static_cast<int64_t>(std::min(ua, ub)) : std::min(a, b);
    case ScalarOp::kPow:
      return integer_pow(a, b);
    case ScalarOp::kAnd:
      return a & b;
    case ScalarOp::kOr:
      return a | b;
    case ScalarOp::kXor:
      return a ^ b;
    case ScalarOp::kShl:
      return ub >= 64 ? 0 : static_cast<int64_t>(ua << ub);
    case ScalarOp::kShr:
      return ub >= 64 ? 0 : static_cast<int64_t>(zero_extend(t, ua) >> ub);
    default:
      PARTITA_CHECK(false, "not an integer operation");
  }
}

double power_of_two(DType type, double x) {
  if (!std::isfinite(x)) return std::numeric_limits<double>::infinity();
  int exponent = 0;
  std::frexp(x, &exponent);  // |x| in [2^(exponent - 1), 2^exponent)
  const int least = type == DType::kF64 ? -1022 : -126;
  return x == 0 || exponent - 1 < least ? 0 : std::ldexp(1, exponent - 1);
}

double float_unary(ScalarOp op, DType type, double x) {
  switch (op) {
    case ScalarOp::kNeg:
      return -x;
    case ScalarOp::kAbs:
      return std::fabs(x);
    case ScalarOp::kSqrt:
      return std::sqrt(x);
    case ScalarOp::kExp:
      return std::exp(x);
    case ScalarOp::kLog:
      return std::log(x);
    case ScalarOp::kLog1p:
      return std::log1p(x);
    case ScalarOp::kExpm1:
      return std::expm1(x);
    case ScalarOp::kTanh:
      return std::tanh(x);
    case ScalarOp::kErf:
      return std::erf(x);
    case ScalarOp::kSin:
      return std::sin(x);
    case ScalarOp::kCos:
      return std::cos(x);
    case ScalarOp::kTan:
      return std::tan(x);
    case ScalarOp::kAsin:
      return std::asin(x);
    case ScalarOp::kAcos:
      return std::acos(x);
    case ScalarOp::kAtan:
      return std::atan(x);
    case ScalarOp::kSinh:
      return std::sinh(x);
    case ScalarOp::kCosh:
      return std::cosh(x);
    case ScalarOp::kFloor:
      return std::floor(x);
    case ScalarOp::kCeil:
      return std::ceil(x);
    case ScalarOp::kRoundEven:
      return std::nearbyint(x);
    case ScalarOp::kPowerOfTwo:
      return power_of_two(type, x);
    default:
      PARTITA_CHECK(false, "not a float operation");
  }
}

bool compare_values(ScalarOp op, DType t, ScalarValue a, ScalarValue b) {
  if (is_float(t)) {
    return op == ScalarOp::kEq   ? a.f == b.f
           : op == ScalarOp::kNe ? a.f != b.f
           : op == ScalarOp::kLt ? a.f < b.f
                                 : a.f <= b.f;
  }
  bool less = t == DType::kU64 ? static_cast<uint64_t>(a.i) < static_cast<uint64_t>(b.i) : a.i < b.i;
  return op == ScalarOp::kEq   ? a.i == b.i
         : op == ScalarOp::kNe ? a.i != b.i
         : op == ScalarOp::kLt ? less
                               : less || a.i == b.i;
}

ScalarValue cast_value(DType from, DType to, ScalarValue v) {
  if (is_float(from)) {
    if (is_float(to)) return v;
    return {0, to == DType::kBool ? v.f != 0 : saturate(to, v.f)};
  }
  if (is_float(to))
    return {from == DType::kU64 ? static_cast<double>(static_cast<uint64_t>(v.i)) : static_cast<double>(v.i), 0};
  return {0, wrap(to, v.i)};
}

// `from`: the type of operand a.
ScalarValue evaluate_node(const ScalarNode& n, DType from, const ScalarValue& a, const ScalarValue& b,
                          const ScalarValue& c) {
  switch (n.op) {
    case ScalarOp::kConstant:
      return {n.f, n.i};
    case ScalarOp::kEq:
    case ScalarOp::kNe:
    case ScalarOp::kLt:
    case ScalarOp::kLe:
      return {0, compare_values(n.op, from, a, b)};
    case ScalarOp::kNot:
      return {0, n.type == DType::kBool ? !a.i : wrap(n.type, ~a.i)};
    case ScalarOp::kSelect:
      return a.i ? b : c;
    case ScalarOp::kCast:
      return cast_value(from, n.type, a);
    case ScalarOp::kIsNan:
      return {0, is_float(from) && std::isnan(a.f)};
    case ScalarOp::kIsInf:
      return {0, is_float(from) && std::isinf(a.f)};
    case ScalarOp::kPhilox:
      return {0, philox(static_cast<uint64_t>(a.i), static_cast<uint64_t>(b.i), static_cast<uint64_t>(n.i))[n.index]};
    default:
      break;
  }
  if (n.b >= 0) {
    if (is_float(n.type)) return {float_binary(n.op, a.f, b.f), 0};
    return {0, wrap(n.type, integer_binary(n.op, n.type, a.i, b.i))};
  }
  if (is_float(n.type)) return {float_unary(n.op, n.type, a.f), 0};
  if (n.op == ScalarOp::kNeg) return {0, wrap(n.type, static_cast<int64_t>(-static_cast<uint64_t>(a.i)))};
  if (n.op == ScalarOp::kAbs)
    return {0, wrap(n.type, a.i < 0 && !is_unsigned(n.type) ? static_cast<int64_t>(-static_cast<uint64_t>(a.i)) : a.i)};
  return a;  // rounding an integer
}

}  // namespace

void evaluate_points(const ScalarFunction& function, size_t count, const std::vector<std::vector<ScalarValue>>& inputs,
                     const std::vector<std::vector<int64_t>>& index, std::vector<ScalarValue>& values) {
  values.resize(function.nodes.size() * count);
  const ScalarValue none;
  for (size_t k = 0; k < function.nodes.size(); ++k) {
    const ScalarNode& n = function.nodes[k];
    ScalarValue* out = values.data() + k * count;
    if (n.op == ScalarOp::kInput) {
      std::copy_n(inputs[static_cast<size_t>(n.index)].begin(), count, out);
      continue;
    }
    if (n.op == ScalarOp::kIndex) {
      for (size_t p = 0; p < count; ++p) out[p] = {0, index[static_cast<size_t>(n.index)][p]};
      continue;
    }
    const DType from = n.a >= 0 ? function.nodes[static_cast<size_t>(n.a)].type : DType::kInvalid;
    auto operand = [&](int at) { return at < 0 ? &none : values.data() + static_cast<size_t>(at) * count; };
    const ScalarValue *a = operand(n.a), *b = operand(n.b), *c = operand(n.c);
    const auto each = [&](auto of) {
      for (size_t p = 0; p < count; ++p) out[p] = {of(a[p].f, b[p].f), 0};
    };
    if (n.b >= 0 && is_float(n.type)) {  // most of what is evaluated: chosen once, not at each point
      if (n.op == ScalarOp::kAdd) {
        each([](double x, double y) { return x + y; });
        continue;
      }
      if (n.op == ScalarOp::kSub) {
        each([](double x, double y) { return x - y; });
        continue;
      }
      if (n.op == ScalarOp::kMul) {
        each([](double x, double y) { return x * y; });
        continue;
      }
    }
    for (size_t p = 0; p < count; ++p)
      out[p] = evaluate_node(n, from, n.a < 0 ? none : a[p], n.b < 0 ? none : b[p], n.c < 0 ? none : c[p]);
  }
}

void evaluate(const ScalarFunction& function, const std::vector<ScalarValue>& inputs, const std::vector<int64_t>& index,
              std::vector<ScalarValue>& scratch, std::vector<ScalarValue>& outputs) {
  std::vector<std::vector<ScalarValue>> in;
  std::vector<std::vector<int64_t>> at;
  for (const ScalarValue& v : inputs) in.push_back({v});
  for (int64_t k : index) at.push_back({k});
  evaluate_points(function, 1, in, at, scratch);
  outputs.resize(function.outputs.size());
  for (size_t k = 0; k < outputs.size(); ++k) outputs[k] = scratch[static_cast<size_t>(function.outputs[k])];
}

}  // namespace partita
