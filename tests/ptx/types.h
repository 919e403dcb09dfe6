// Types of PTX (PTX ISA, "Types") and what they are in memory and in registers.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace partita::ptx {

constexpr int kLanes = 32;  // threads of a warp
constexpr uint32_t kAllLanes = ~uint32_t{0};

enum class Type : uint8_t {
  kPred,
  kB8,
  kU8,
  kS8,
  kB16,
  kU16,
  kS16,
  kF16,
  kBf16,
  kB32,
  kU32,
  kS32,
  kF32,
  kB64,
  kU64,
  kS64,
  kF64
};

constexpr int bytes_of(Type t) {
  return t == Type::kPred || t >= Type::kB64 ? (t == Type::kPred ? 4 : 8)
         : t <= Type::kS8                    ? 1
         : t <= Type::kBf16                  ? 2
                                             : 4;
}
// A predicate is one bit for each lane; there are no registers of 8 bits.
constexpr int register_bytes(Type t) { return bytes_of(t) == 1 ? 2 : bytes_of(t); }
constexpr bool is_signed(Type t) { return t == Type::kS8 || t == Type::kS16 || t == Type::kS32 || t == Type::kS64; }

inline std::optional<Type> type_named(std::string_view name) {
  constexpr std::string_view kNames[] = {"pred", "b8",  "u8",  "s8",  "b16", "u16", "s16", "f16", "bf16",
                                         "b32",  "u32", "s32", "f32", "b64", "u64", "s64", "f64"};
  for (uint8_t t = 0; t < std::size(kNames); ++t) {
    if (kNames[t] == name) return static_cast<Type>(t);
  }
  return std::nullopt;
}

}  // namespace partita::ptx
