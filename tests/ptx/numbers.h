// Numbers as PTX's instructions compute them: half precision with one rounding, and what C++ leaves undefined.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>

namespace partita::ptx {

struct F16 {
  uint16_t bits;
};
struct Bf16 {
  uint16_t bits;
};

// To nearest, ties to even. Exact in a double whatever the source was, so nothing is rounded twice.
inline F16 to_f16(double x) {
  if (std::isnan(x)) return {0x7fff};
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const double size = std::fabs(x);
  if (size >= 65520) return {static_cast<uint16_t>(sign | 0x7c00)};
  int exponent = 0;
  std::frexp(size, &exponent);         // size in [2^(exponent - 1), 2^exponent)
  exponent = std::max(exponent, -13);  // subnormal numbers have the unit of the smallest normal ones
  const double unit = std::ldexp(1, exponent - 11);
  const auto count = static_cast<uint32_t>(std::nearbyint(size / unit));  // up to 2048, which carries
  const uint32_t biased = static_cast<uint32_t>(exponent + 14);
  return {static_cast<uint16_t>(sign | (count < 1024 ? count : ((biased - 1) << 10) + count))};
}
inline float to_float(F16 x) {
  const int exponent = x.bits >> 10 & 31;
  const uint32_t fraction = x.bits & 1023u;
  const float sign = (x.bits & 0x8000) != 0 ? -1.0f : 1.0f;
  if (exponent == 31) return fraction != 0 ? std::numeric_limits<float>::quiet_NaN() : sign * INFINITY;
  return sign * std::ldexp(static_cast<float>(exponent == 0 ? fraction : fraction | 1024u), std::max(exponent, 1) - 25);
}
inline Bf16 to_bf16(float x) {
  if (std::isnan(x)) return {0x7fff};
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
inline float to_float(Bf16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }

inline float flushed(float x) { return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x; }

// min and max give the operand that is a number, and -0 < +0.
template <typename T>
T least(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a)) return b;
    if (std::isnan(b)) return a;
    if (a == b) return std::signbit(a) ? a : b;
  }
  return a < b ? a : b;
}
template <typename T>
T greatest(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a)) return b;
    if (std::isnan(b)) return a;
    if (a == b) return std::signbit(a) ? b : a;
  }
  return a < b ? b : a;
}

// A floating-point number that was rounded to an integral one, as an integer: what is too large becomes the nearest
// there is, a NaN 0.
template <typename I>
I saturated(double x) {
  if (std::isnan(x)) return 0;
  const double above = std::ldexp(1.0, std::numeric_limits<I>::digits);
  if (x >= above) return std::numeric_limits<I>::max();
  if (x < (std::is_signed_v<I> ? -above : 0.0)) return std::numeric_limits<I>::min();
  return static_cast<I>(x);
}

}  // namespace partita::ptx
