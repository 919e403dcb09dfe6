#include "base/cat.h"

#include <iterator>

#include "fmt/format.h"

namespace partita {

void CatArgument::append_to(std::string& to) const {
  switch (kind_) {
    case Kind::kText:
      to.append(text_);
      return;
    case Kind::kCharacter:
      to.push_back(character_);
      return;
    case Kind::kSigned:
      to.append(fmt::format_int(signed_).c_str());
      return;
    case Kind::kUnsigned:
      to.append(fmt::format_int(unsigned_).c_str());
      return;
    case Kind::kFloat:
      fmt::format_to(std::back_inserter(to), "{}", float_);
      return;
    case Kind::kDouble:
      fmt::format_to(std::back_inserter(to), "{}", double_);
      return;
  }
}

void append_arguments(std::string& to, std::initializer_list<CatArgument> arguments) {
  for (const CatArgument& argument : arguments) argument.append_to(to);
}

std::string cat_arguments(std::initializer_list<CatArgument> arguments) {
  std::string s;
  append_arguments(s, arguments);
  return s;
}

}  // namespace partita
