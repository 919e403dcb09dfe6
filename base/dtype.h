// Element types, shared by the compiler and the runtime. The numeric values are part of the program format.
#pragma once

#include <cstdint>
#include <string_view>

namespace partita {

enum class DType : uint8_t {
  kInvalid = 0,
  kBool = 1,
  kI8 = 2,
  kU8 = 3,
  kI16 = 4,
  kU16 = 5,
  kI32 = 6,
  kU32 = 7,
  kI64 = 8,
  kU64 = 9,
  kF16 = 10,
  kBF16 = 11,
  kF32 = 12,
  kF64 = 13,
};

// Bytes per element; 0 for kInvalid.
constexpr int64_t dtype_size(DType t) {
  switch (t) {
    case DType::kBool:
    case DType::kI8:
    case DType::kU8:
      return 1;
    case DType::kI16:
    case DType::kU16:
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kI32:
    case DType::kU32:
    case DType::kF32:
      return 4;
    case DType::kI64:
    case DType::kU64:
    case DType::kF64:
      return 8;
    case DType::kInvalid:
      return 0;
  }
  return 0;
}
constexpr bool is_float(DType t) { return t >= DType::kF16; }
// Whether floats of one type are all of them floats of the other, which takes more bytes.
constexpr bool widens(DType from, DType to) {
  return is_float(from) && is_float(to) && dtype_size(from) < dtype_size(to);
}
constexpr bool is_integer(DType t) { return t >= DType::kI8 && t <= DType::kU64; }
constexpr bool is_unsigned(DType t) {
  return t == DType::kBool || t == DType::kU8 || t == DType::kU16 || t == DType::kU32 || t == DType::kU64;
}

// "f32", "i64", "bool", …
std::string_view dtype_name(DType t);
// kInvalid when `name` is none of them.
DType parse_dtype(std::string_view name);

}  // namespace partita
