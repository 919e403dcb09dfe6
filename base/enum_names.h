// The names of an enum's values, for files and messages: one table, beside the enum, in the order of its values.
//
//   enum class FanMode { kFanIn, kFanOut };
//   template <>
//   inline constexpr auto kEnumNames<FanMode> = name_table("fan_in", "fan_out");
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

namespace partita {

template <typename... Names>
constexpr std::array<std::string_view, sizeof...(Names)> name_table(const Names&... names) {
  return {std::string_view(names)...};
}

template <typename Enum>
inline constexpr std::array<std::string_view, 0> kEnumNames = {};

template <typename Enum>
constexpr std::span<const std::string_view> enum_names() {
  static_assert(!kEnumNames<Enum>.empty(), "this enum has no table of names");
  return kEnumNames<Enum>;
}

template <typename Enum>
constexpr std::string_view enum_name(Enum value) {
  return enum_names<Enum>()[static_cast<size_t>(value)];
}

// The value of that name; nullopt where there is none.
template <typename Enum>
constexpr std::optional<Enum> parse_enum(std::string_view name) {
  const std::span<const std::string_view> names = enum_names<Enum>();
  for (size_t k = 0; k < names.size(); ++k) {
    if (names[k] == name) return static_cast<Enum>(k);
  }
  return std::nullopt;
}

}  // namespace partita
