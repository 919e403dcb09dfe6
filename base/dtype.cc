#include "base/dtype.h"

#include <array>

namespace partita {
namespace {
constexpr std::array<std::string_view, 14> kNames = {"invalid", "bool", "i8",  "u8",  "i16",  "u16", "i32",
                                                     "u32",     "i64",  "u64", "f16", "bf16", "f32", "f64"};
}  // namespace

std::string_view dtype_name(DType t) { return kNames[static_cast<size_t>(t)]; }

DType parse_dtype(std::string_view name) {
  for (size_t i = 1; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<DType>(i);
  }
  return DType::kInvalid;
}

}  // namespace partita
