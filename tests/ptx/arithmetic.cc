// Arithmetic (PTX ISA, "Integer Arithmetic", "Floating-Point").
#include <cfenv>

#include "tests/ptx/decode.h"
#include "tests/ptx/lanes.h"

namespace partita::ptx {
namespace {

using enum Type;

template <typename T>
concept Half = std::is_same_v<T, F16>;
template <typename T>
concept Narrow = std::is_same_v<T, F16> || std::is_same_v<T, Bf16>;

template <typename T>
struct Wider;
template <>
struct Wider<uint16_t> {
  using type = uint32_t;
};
template <>
struct Wider<int16_t> {
  using type = int32_t;
};
template <>
struct Wider<uint32_t> {
  using type = uint64_t;
};
template <>
struct Wider<int32_t> {
  using type = int64_t;
};
template <>
struct Wider<uint64_t> {
  using type = unsigned __int128;
};
template <>
struct Wider<int64_t> {
  using type = __int128;
};

// Integers wrap around. A sum, difference or product of halves that is rounded to float and then to a half is rounded
// as if once: float has more than twice the digits.
#define PARTITA_WRAPPING(NAME, OPERATOR)                                                   \
  struct NAME {                                                                            \
    template <typename T>                                                                  \
    static T of(T a, T b) {                                                                \
      if constexpr (Half<T>)                                                               \
        return to_f16(to_float(a) OPERATOR to_float(b));                                   \
      else if constexpr (std::is_integral_v<T>)                                            \
        return static_cast<T>(static_cast<uint64_t>(a) OPERATOR static_cast<uint64_t>(b)); \
      else                                                                                 \
        return a OPERATOR b;                                                               \
    }                                                                                      \
  };
PARTITA_WRAPPING(Add, +)
PARTITA_WRAPPING(Subtract, -)
PARTITA_WRAPPING(Multiply, *)
#undef PARTITA_WRAPPING

struct MultiplyHigh {
  template <typename T>
  static T of(T a, T b) {
    using W = typename Wider<T>::type;
    return static_cast<T>((static_cast<W>(a) * static_cast<W>(b)) >> (8 * sizeof(T)));
  }
};
struct MultiplyWide {
  template <typename T>
  static auto of(T a, T b) {
    using W = typename Wider<T>::type;
    return static_cast<W>(static_cast<W>(a) * static_cast<W>(b));
  }
  template <typename T>
  static auto of(T a, T b, typename Wider<T>::type c) {
    return static_cast<typename Wider<T>::type>(Add::of(MultiplyWide::of(a, b), c));
  }
};
struct MultiplyAdd {
  template <typename T>
  static T of(T a, T b, T c) {
    return Add::of(Multiply::of(a, b), c);
  }
};
// A quotient by zero is unspecified: all ones, as GPUs give it.
struct Divide {
  template <typename T>
  static T of(T a, T b) {
    if constexpr (std::is_floating_point_v<T>)
      return a / b;
    else if constexpr (std::is_signed_v<T>)
      return b == 0 ? T(-1) : b == -1 ? Subtract::of(T(0), a) : static_cast<T>(a / b);
    else
      return b == 0 ? static_cast<T>(~T(0)) : static_cast<T>(a / b);
  }
};
struct Remainder {
  template <typename T>
  static T of(T a, T b) {
    if constexpr (std::is_signed_v<T>)
      return b == 0 ? a : b == -1 ? T(0) : static_cast<T>(a % b);
    else
      return b == 0 ? a : static_cast<T>(a % b);
  }
};
struct FusedMultiplyAdd {
  template <typename T>
  static T of(T a, T b, T c) {
    return std::fma(a, b, c);
  }
};
struct FusedDown {
  template <typename T>
  static T of(T a, T b, T c) {
    const int before = std::fegetround();
    std::fesetround(FE_DOWNWARD);
    volatile T x = a;
    volatile T rounded = std::fma(x, b, c);
    std::fesetround(before);
    return rounded;
  }
};
struct Minimum {
  template <typename T>
  static T of(T a, T b) {
    return least(a, b);
  }
};
struct Maximum {
  template <typename T>
  static T of(T a, T b) {
    return greatest(a, b);
  }
};
// With .NaN: one where either operand is one.
template <typename Op>
struct HandingNaNOn {
  static float of(float a, float b) {
    return std::isnan(a) || std::isnan(b) ? std::numeric_limits<float>::quiet_NaN() : Op::of(a, b);
  }
};
// Of numbers in 16 bits.
template <typename Op>
struct OfNarrow {
  template <Narrow T>
  static T of(T a, T b) {
    const float result = Op::of(to_float(a), to_float(b));
    if constexpr (Half<T>)
      return to_f16(result);
    else
      return to_bf16(result);
  }
};
struct Absolute {
  template <typename T>
  static T of(T a) {
    if constexpr (Narrow<T>)
      return {static_cast<uint16_t>(a.bits & 0x7fff)};
    else if constexpr (std::is_floating_point_v<T>)
      return std::fabs(a);
    else
      return a < 0 ? Subtract::of(T(0), a) : a;
  }
};
struct Negate {
  template <typename T>
  static T of(T a) {
    if constexpr (Narrow<T>)
      return {static_cast<uint16_t>(a.bits ^ 0x8000)};
    else if constexpr (std::is_floating_point_v<T>)
      return -a;
    else
      return Subtract::of(T(0), a);
  }
};
struct CopySign {
  template <typename T>
  static T of(T sign, T value) {
    return std::copysign(value, sign);
  }
};
struct SquareRoot {
  template <typename T>
  static T of(T a) {
    return std::sqrt(a);
  }
};
struct Reciprocal {
  template <typename T>
  static T of(T a) {
    return T(1) / a;
  }
};
// Approximations, to nearest from a double: within the errors that the ISA allows of each.
#define PARTITA_APPROXIMATION(NAME, VALUE)                             \
  struct NAME {                                                        \
    static float of(float a) {                                         \
      const double x = a;                                              \
      return static_cast<float>(VALUE);                                \
    }                                                                  \
  };                                                                   \
  struct NAME##Flushing {                                              \
    static float of(float a) { return flushed(NAME::of(flushed(a))); } \
  };
PARTITA_APPROXIMATION(PowerOfTwo, std::exp2(x))
PARTITA_APPROXIMATION(LogarithmOfTwo, std::log2(x))
PARTITA_APPROXIMATION(AboutReciprocal, 1 / x)
PARTITA_APPROXIMATION(AboutReciprocalRoot, 1 / std::sqrt(x))
PARTITA_APPROXIMATION(AboutRoot, std::sqrt(x))
PARTITA_APPROXIMATION(AboutSine, std::sin(x))
PARTITA_APPROXIMATION(AboutCosine, std::cos(x))
PARTITA_APPROXIMATION(AboutTangent, std::tanh(x))
#undef PARTITA_APPROXIMATION
// Of the upper 32 bits alone, with 20 bits of mantissa: a first guess for a division.
struct GrossReciprocal {
  static double of(double a) {
    constexpr uint64_t kUpper = ~uint64_t{0} << 32;
    const double x = std::bit_cast<double>(std::bit_cast<uint64_t>(a) & kUpper);
    if (std::isnan(x)) return x;
    if (x != 0 && std::fabs(x) < std::numeric_limits<double>::min()) return std::copysign(INFINITY, x);
    const double y = 1 / x;
    if (std::fabs(y) < std::numeric_limits<double>::min()) return std::copysign(0.0, x);
    return std::bit_cast<double>(std::bit_cast<uint64_t>(y) & kUpper);
  }
};

template <typename Op>
void sum(Decoder& d) {
  d.take("rn");
  const Type t = take_number(d);
  finish(d, t, binary<Op, kU16, kS16, kF16, kU32, kS32, kF32, kU64, kS64, kF64>(t), 3);
}

template <Type... types>
Run wide_product(Type t) {
  Run run = nullptr;
  ((t == types ? void(run = run_lanes<MultiplyWide, typename Wider<held<types>>::type, held<types>, held<types>>)
               : void()),
   ...);
  return run;
}
template <Type... types>
Run wide_sum(Type t) {
  Run run = nullptr;
  ((t == types ? void(run = run_lanes<MultiplyWide, typename Wider<held<types>>::type, held<types>, held<types>,
                                      typename Wider<held<types>>::type>)
               : void()),
   ...);
  return run;
}
Type wider(Type t) { return t == kU16 || t == kS16 ? kU32 : kU64; }

void multiply(Decoder& d) {
  if (d.take("wide")) {
    const Type t = take_number(d);
    d.made.at[0] = d.result(0, wider(t));
    for (size_t k = 1; k < 3; ++k) d.made.at[k] = d.source(k, t);
    return d.finish(Kind::kInteger, Flow::kNext, wide_product<kU16, kS16, kU32, kS32>(t), 3);
  }
  if (d.take("hi")) {
    const Type t = take_number(d);
    return finish(d, t, binary<MultiplyHigh, kU16, kS16, kU32, kS32, kU64, kS64>(t), 3);
  }
  if (d.take("lo")) {
    const Type t = take_number(d);
    return finish(d, t, binary<Multiply, kU16, kS16, kU32, kS32, kU64, kS64>(t), 3);
  }
  d.take("rn");
  const Type t = take_number(d);
  finish(d, t, binary<Multiply, kF16, kF32, kF64>(t), 3);
}
void multiply_add(Decoder& d) {
  if (d.take("wide")) {
    const Type t = take_number(d);
    d.made.at[0] = d.result(0, wider(t));
    d.made.at[1] = d.source(1, t), d.made.at[2] = d.source(2, t), d.made.at[3] = d.source(3, wider(t));
    return d.finish(Kind::kInteger, Flow::kNext, wide_sum<kU16, kS16, kU32, kS32>(t), 4);
  }
  if (!d.take("lo")) return d.refuse("only .lo and .wide are known");
  const Type t = take_number(d);
  finish(d, t, ternary<MultiplyAdd, kU16, kS16, kU32, kS32, kU64, kS64>(t), 4);
}
void fused(Decoder& d) {
  const bool down = d.take("rm");
  if (!down && !d.take("rn")) return d.refuse("only .rn and .rm are known");
  const Type t = take_number(d);
  finish(d, t, down ? ternary<FusedDown, kF32>(t) : ternary<FusedMultiplyAdd, kF32, kF64>(t), 4);
}
void divide(Decoder& d) {
  const bool rounds = d.take("rn");
  const Type t = take_number(d);
  set_operands(d, t, 3);
  d.finish(Kind::kSpecial, Flow::kNext,
           rounds ? binary<Divide, kF32, kF64>(t) : binary<Divide, kU16, kS16, kU32, kS32, kU64, kS64>(t), 3);
}
void remainder(Decoder& d) {
  const Type t = take_number(d);
  set_operands(d, t, 3);
  d.finish(Kind::kSpecial, Flow::kNext, binary<Remainder, kU16, kS16, kU32, kS32, kU64, kS64>(t), 3);
}
template <typename Op>
void extreme(Decoder& d) {
  const bool hands_on = d.take("NaN");
  const Type t = take_number(d);
  if (t == kF16 || t == kBf16) {
    const Run run =
        hands_on ? binary<OfNarrow<HandingNaNOn<Op>>, kF16, kBf16>(t) : binary<OfNarrow<Op>, kF16, kBf16>(t);
    return finish(d, t, run, 3);
  }
  if (hands_on) return finish(d, t, binary<HandingNaNOn<Op>, kF32>(t), 3);
  finish(d, t, binary<Op, kU16, kS16, kU32, kS32, kF32, kU64, kS64, kF64>(t), 3);
}

template <typename Op>
void sign(Decoder& d) {
  const Type t = take_number(d);
  finish(d, t, unary<Op, kS16, kF16, kBf16, kS32, kF32, kS64, kF64>(t), 2);
}
void copy_sign(Decoder& d) {
  const Type t = take_number(d);
  finish(d, t, binary<CopySign, kF32, kF64>(t), 3);
}

// Exact to the last bit with .rn; else an approximation, of float.
template <typename Exact, typename About, typename AboutFlushing>
void special(Decoder& d) {
  Run run = nullptr;
  if (d.take("approx")) {
    const bool flushes = d.take("ftz");
    const Type t = take_number(d);
    if (t == kF32)
      run = flushes ? run_lanes<AboutFlushing, float, float> : run_lanes<About, float, float>;
    else if (t == kF64 && flushes && std::is_same_v<Exact, Reciprocal>)
      run = run_lanes<GrossReciprocal, double, double>;
    set_operands(d, t, 2);
  } else if (d.take("rn")) {
    const Type t = take_number(d);
    if constexpr (!std::is_void_v<Exact>) run = unary<Exact, kF32, kF64>(t);
    set_operands(d, t, 2);
  }
  d.finish(Kind::kSpecial, Flow::kNext, run, 2);
}

}  // namespace

void add_arithmetic(Decoders& to) {
  to["add"] = sum<Add>;
  to["sub"] = sum<Subtract>;
  to["mul"] = multiply;
  to["mad"] = multiply_add;
  to["fma"] = fused;
  to["div"] = divide;
  to["rem"] = remainder;
  to["min"] = extreme<Minimum>;
  to["max"] = extreme<Maximum>;
  to["abs"] = sign<Absolute>;
  to["neg"] = sign<Negate>;
  to["copysign"] = copy_sign;
  to["sqrt"] = special<SquareRoot, AboutRoot, AboutRootFlushing>;
  to["rcp"] = special<Reciprocal, AboutReciprocal, AboutReciprocalFlushing>;
  to["rsqrt"] = special<void, AboutReciprocalRoot, AboutReciprocalRootFlushing>;
  to["ex2"] = special<void, PowerOfTwo, PowerOfTwoFlushing>;
  to["lg2"] = special<void, LogarithmOfTwo, LogarithmOfTwoFlushing>;
  to["sin"] = special<void, AboutSine, AboutSineFlushing>;
  to["cos"] = special<void, AboutCosine, AboutCosineFlushing>;
  to["tanh"] = special<void, AboutTangent, AboutTangentFlushing>;
}

}  // namespace partita::ptx
