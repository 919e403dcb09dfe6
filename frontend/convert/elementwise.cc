// Arithmetic, comparisons, logic and casts, element by element with NumPy's broadcasting.
#include <array>
#include <cmath>

#include "base/cat.h"
#include "frontend/import/convert_table.h"

namespace partita {
namespace {

template <const char* kOp>
void unary(Conversion& c) {
  c.out(c.e.emit(kOp, {c.in(0)}));
}
template <const char* kOp>
void binary(Conversion& c) {
  c.out(c.e.emit(kOp, {c.in(0), c.in(1)}));
}
template <const char* kOp>
void swapped(Conversion& c) {
  c.out(c.e.emit(kOp, {c.in(1), c.in(0)}));
}
template <const char* kOp>
void variadic(Conversion& c) {
  ValueId v = c.in(0);
  for (int k = 1; k < c.count(); ++k) v = c.e.emit(kOp, {v, c.in(k)});
  c.out(v);
}

// Names of IR ops as template arguments.
constexpr char k_neg[] = "neg";
constexpr char k_abs[] = "abs";
constexpr char k_sign[] = "sign";
constexpr char k_exp[] = "exp";
constexpr char k_log[] = "log";
constexpr char k_sqrt[] = "sqrt";
constexpr char k_sin[] = "sin";
constexpr char k_cos[] = "cos";
constexpr char k_tan[] = "tan";
constexpr char k_asin[] = "asin";
constexpr char k_acos[] = "acos";
constexpr char k_atan[] = "atan";
constexpr char k_sinh[] = "sinh";
constexpr char k_cosh[] = "cosh";
constexpr char k_tanh[] = "tanh";
constexpr char k_erf[] = "erf";
constexpr char k_floor[] = "floor";
constexpr char k_ceil[] = "ceil";
constexpr char k_round[] = "round";
constexpr char k_is_nan[] = "is_nan";
constexpr char k_add[] = "add";
constexpr char k_sub[] = "sub";
constexpr char k_mul[] = "mul";
constexpr char k_max[] = "max";
constexpr char k_min[] = "min";
constexpr char k_eq[] = "eq";
constexpr char k_lt[] = "lt";
constexpr char k_le[] = "le";
constexpr char k_and[] = "and";
constexpr char k_or[] = "or";
constexpr char k_xor[] = "xor";
constexpr char k_not[] = "not";

void stop_gradient(Conversion& c) { c.out(c.e.emit("stop_gradient", {c.in(0)})); }

void identity(Conversion& c) { c.out(0, c.any(0)); }

void divide(Conversion& c) { c.out(c.e.div(c.in(0), c.in(1))); }

void reciprocal(Conversion& c) { c.out(c.e.div(c.e.like(c.in(0), 1), c.in(0))); }

// asinh x = sign(x) log(|x| + sqrt(x^2 + 1)), which does not cancel for negative x.
void asinh(Conversion& c) {
  Emitter& e = c.e;
  ValueId x = c.in(0), a = e.emit("abs", {x});
  c.out(e.mul(e.emit("sign", {x}), e.emit("log", {e.add(a, e.emit("sqrt", {e.shift(e.mul(x, x), 1)}))})));
}

void acosh(Conversion& c) {
  Emitter& e = c.e;
  ValueId x = c.in(0);
  c.out(e.emit("log", {e.add(x, e.emit("sqrt", {e.shift(e.mul(x, x), -1)}))}));
}

void atanh(Conversion& c) {
  Emitter& e = c.e;
  ValueId x = c.in(0);
  c.out(e.scale(e.sub(e.emit("log1p", {x}), e.emit("log1p", {e.neg(x)})), 0.5));
}

void mean(Conversion& c) {
  variadic<k_add>(c);
  c.out(c.e.scale(c.outputs[0].value, 1.0 / c.count()));
}

// The exponent may have another type; the result has the base's.
void power(Conversion& c) {
  Emitter& e = c.e;
  ValueId x = c.in(0), y = c.in(1);
  DType t = e.dtype(x);
  if (const Literal* l = e.literal(y);
      l && elements(l->type.shape) == 1 && l->type.rank() <= e.rank(x) && is_float(t)) {
    double p = element_f(*l, 0);
    if (p == 1) return c.out(x);
    if (p == 2) return c.out(e.mul(x, x));
    if (p == 3) return c.out(e.mul(e.mul(x, x), x));
    if (p == 0.5) return c.out(e.emit("sqrt", {x}));
    if (p == -0.5) return c.out(e.emit("rsqrt", {x}));
  }
  if (!is_float(t) && is_float(e.dtype(y))) return c.out(e.cast(e.emit("pow", {e.cast(x, e.dtype(y)), y}), t));
  c.out(e.emit("pow", {x, e.cast(y, t)}));
}

// fmod = 0: the sign of the divisor; 1: of the dividend.
void modulo(Conversion& c) {
  Emitter& e = c.e;
  ValueId x = c.in(0), y = c.in(1), r = e.emit("mod", {x, y});
  DType t = e.dtype(x);
  if (c.i("fmod", 0) != 0 || is_unsigned(t)) return c.out(r);
  c.require(!is_float(t) || c.version >= 13, "Mod of floats needs fmod = 1");
  ValueId zero = e.scalar(t, 0);
  ValueId differ = e.emit("xor", {e.lt(r, zero), e.lt(y, zero)}),
          wrong = e.emit("and", {e.emit("ne", {r, zero}), differ});
  c.out(e.select(wrong, e.add(r, y), r));
}

void is_inf(Conversion& c) {
  Emitter& e = c.e;
  ValueId x = c.in(0), inf = e.emit("is_inf", {x}), zero = e.like(x, 0);
  bool negative = c.i("detect_negative", 1) != 0, positive = c.i("detect_positive", 1) != 0;
  if (negative && positive) return c.out(inf);
  if (!negative && !positive) return c.out(e.full(DType::kBool, e.shape(x), 0));
  c.out(e.emit("and", {inf, negative ? e.lt(x, zero) : e.lt(zero, x)}));
}

void bit_shift(Conversion& c) {
  std::string direction = c.s("direction", "");
  c.require(direction == "LEFT" || direction == "RIGHT", "attribute direction: expected LEFT or RIGHT");
  c.out(c.e.emit(direction == "LEFT" ? "shl" : "shr", {c.in(0), c.in(1)}));
}

void where(Conversion& c) { c.out(c.e.select(c.in(0), c.in(1), c.in(2))); }

void cast(Conversion& c) { c.out(c.e.cast(c.in(0), c.element(c.i("to")))); }
void cast_like(Conversion& c) { c.out(c.e.cast(c.in(0), c.dtype(1))); }

void clip(Conversion& c) {
  Emitter& e = c.e;
  ValueId x = c.in(0);
  ValueId low = kNoValue, high = kNoValue;
  if (c.version < 11) {
    if (c.set("min")) low = e.like(x, c.f("min", 0));
    if (c.set("max")) high = e.like(x, c.f("max", 0));
  } else {
    for (int k : {1, 2}) {
      if (!c.has(k)) continue;
      c.require(elements(c.shape(k)) == 1, "the bounds must be scalars");
      (k == 1 ? low : high) = e.reshape(c.in(k), {});
      c.services.never_train(c.in(k));
    }
  }
  if (low != kNoValue) x = e.max(x, low);
  if (high != kNoValue) x = e.min(x, high);
  c.out(x);
}

constexpr ConvertEntry kTable[] = {
    {"Neg", 1, unary<k_neg>},
    {"Abs", 1, unary<k_abs>},
    {"Sign", 1, unary<k_sign>},
    {"Exp", 1, unary<k_exp>},
    {"Log", 1, unary<k_log>},
    {"Sqrt", 1, unary<k_sqrt>},
    {"Sin", 1, unary<k_sin>},
    {"Cos", 1, unary<k_cos>},
    {"Tan", 1, unary<k_tan>},
    {"Asin", 1, unary<k_asin>},
    {"Acos", 1, unary<k_acos>},
    {"Atan", 1, unary<k_atan>},
    {"Sinh", 1, unary<k_sinh>},
    {"Cosh", 1, unary<k_cosh>},
    {"Tanh", 1, unary<k_tanh>},
    {"Erf", 1, unary<k_erf>},
    {"Floor", 1, unary<k_floor>},
    {"Ceil", 1, unary<k_ceil>},
    {"Round", 1, unary<k_round>},
    {"IsNaN", 1, unary<k_is_nan>},
    {"Not", 1, unary<k_not>},
    {"BitwiseNot", 1, unary<k_not>},
    {"Asinh", 1, asinh},
    {"Acosh", 1, acosh},
    {"Atanh", 1, atanh},
    {"Identity", 1, identity},
    {"StopGradient", 1, stop_gradient, "partita"},  // what the Python package writes for detach()
    {"Reciprocal", 1, reciprocal},
    {"Add", 7, binary<k_add>},
    {"Sub", 7, binary<k_sub>},
    {"Mul", 7, binary<k_mul>},
    {"Div", 7, divide},
    {"Pow", 7, power},
    {"Mod", 1, modulo},
    {"Max", 1, variadic<k_max>},
    {"Min", 1, variadic<k_min>},
    {"Sum", 1, variadic<k_add>},
    {"Mean", 1, mean},
    {"Equal", 7, binary<k_eq>},
    {"Less", 7, binary<k_lt>},
    {"LessOrEqual", 1, binary<k_le>},
    {"Greater", 7, swapped<k_lt>},
    {"GreaterOrEqual", 1, swapped<k_le>},
    {"And", 7, binary<k_and>},
    {"Or", 7, binary<k_or>},
    {"Xor", 7, binary<k_xor>},
    {"BitwiseAnd", 1, binary<k_and>},
    {"BitwiseOr", 1, binary<k_or>},
    {"BitwiseXor", 1, binary<k_xor>},
    {"BitShift", 1, bit_shift},
    {"IsInf", 1, is_inf},
    {"Where", 1, where},
    {"Cast", 1, cast},
    {"CastLike", 1, cast_like},
    {"Clip", 1, clip},
};

}  // namespace

std::span<const ConvertEntry> elementwise_table() { return kTable; }

}  // namespace partita
