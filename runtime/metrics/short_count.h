// Numbers as people read them at a glance.
#pragma once

#include <cmath>
#include <iterator>
#include <string>
#include <string_view>

#include "fmt/format.h"

namespace partita::runtime {

// 1234567 -> "1.23M"
inline std::string short_count(double value) {
  constexpr std::string_view kUnits[] = {"", "k", "M", "G", "T", "P", "E"};
  size_t unit = 0;
  while (std::abs(value) >= 999.5 && unit + 1 < std::size(kUnits)) value /= 1000, ++unit;
  return fmt::format("{:.3g}{}", value, kUnits[unit]);
}

}  // namespace partita::runtime
