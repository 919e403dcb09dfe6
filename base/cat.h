// Strings and numbers, one after the other, as one string. (Debian's absl::string_view is not std::string_view, so
// absl::StrCat takes neither.)
#pragma once

#include <iterator>
#include <string>
#include <string_view>

#include "absl/strings/string_view.h"
#include "fmt/format.h"

namespace partita {

template <typename... Args>
void append(std::string& to, const Args&... args) {
  auto one = [&](const auto& x) {
    if constexpr (std::is_same_v<std::decay_t<decltype(x)>, absl::string_view>) {
      to.append(x.data(), x.size());
    } else {
      fmt::format_to(std::back_inserter(to), "{}", x);
    }
  };
  (one(args), ...);
}

template <typename... Args>
std::string cat(const Args&... args) {
  std::string s;
  append(s, args...);
  return s;
}

}  // namespace partita
