// Strings and numbers, one after the other, as one string. (Debian's absl::string_view is not std::string_view, so
// absl::StrCat takes neither.) Numbers read as fmt's "{}" writes them: the shortest text that reads back the same.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "absl/strings/string_view.h"

namespace partita {

// One argument of cat(), its type erased: some 1,900 calls share one formatter instead of instantiating it each.
class CatArgument {
 public:
  CatArgument(std::string_view text) : kind_(Kind::kText), text_(text) {}
  CatArgument(const std::string& text) : CatArgument(std::string_view(text)) {}
  CatArgument(const char* text) : CatArgument(std::string_view(text)) {}
  CatArgument(absl::string_view text) : CatArgument(std::string_view(text.data(), text.size())) {}
  CatArgument(std::same_as<char> auto x) : kind_(Kind::kCharacter), character_(x) {}
  CatArgument(std::same_as<bool> auto x) : CatArgument(x ? std::string_view("true") : std::string_view("false")) {}
  CatArgument(std::signed_integral auto x) : kind_(Kind::kSigned), signed_(x) {}
  CatArgument(std::unsigned_integral auto x) : kind_(Kind::kUnsigned), unsigned_(x) {}
  CatArgument(float x) : kind_(Kind::kFloat), float_(x) {}
  CatArgument(double x) : kind_(Kind::kDouble), double_(x) {}

  void append_to(std::string& to) const;

 private:
  enum class Kind : uint8_t { kText, kCharacter, kSigned, kUnsigned, kFloat, kDouble };
  Kind kind_;
  union {
    std::string_view text_;
    char character_;
    int64_t signed_;
    uint64_t unsigned_;
    float float_;
    double double_;
  };
};

void append_arguments(std::string& to, std::initializer_list<CatArgument> arguments);
std::string cat_arguments(std::initializer_list<CatArgument> arguments);

template <typename... Args>
void append(std::string& to, const Args&... args) {
  append_arguments(to, {CatArgument(args)...});
}

template <typename... Args>
std::string cat(const Args&... args) {
  return cat_arguments({CatArgument(args)...});
}

}  // namespace partita
