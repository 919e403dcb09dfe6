#include "ir/recipe/glob.h"

#include <algorithm>

namespace partita {
namespace {

// Bytes of the UTF-8 character at `text[at]`; a byte that starts none counts alone.
size_t character_length(std::string_view text, size_t at) {
  unsigned char lead = text[at];
  size_t length = lead < 0xC0 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  return std::min(length, text.size() - at);
}

// The `]` that closes the class opened at `open`, or npos. A `]` right after `[` or `[!` is a member.
size_t class_end(std::string_view pattern, size_t open) {
  size_t first = open + 1;
  if (first < pattern.size() && (pattern[first] == '!' || pattern[first] == '^')) ++first;
  return first < pattern.size() ? pattern.find(']', first + 1) : std::string_view::npos;
}

bool class_holds(std::string_view members, unsigned char c) {
  bool negated = members[0] == '!' || members[0] == '^';
  bool found = false;
  for (size_t i = negated ? 1 : 0; i < members.size(); ++i) {
    unsigned char low = members[i], high = low;
    if (i + 2 < members.size() && members[i + 1] == '-') {
      high = members[i + 2];
      i += 2;
    }
    found = found || (low <= c && c <= high);
  }
  return found != negated;
}

// One non-star pattern element against one character. `element` and `character` receive the bytes used.
bool element_matches(std::string_view pattern, size_t p, std::string_view name, size_t n, size_t& element,
                     size_t& character) {
  character = character_length(name, n);
  element = 1;
  if (pattern[p] == '?') return true;
  if (pattern[p] == '[') {
    size_t end = class_end(pattern, p);
    if (end != std::string_view::npos) {
      element = end - p + 1;
      return class_holds(pattern.substr(p + 1, end - p - 1), name[n]);
    }
  }
  element = character_length(pattern, p);
  return pattern.substr(p, element) == name.substr(n, character);
}

}  // namespace

// Only the last star is ever tried again: whatever an earlier star could take, the last one can take too.
//   *ab*c on xabyc: star 1 takes x, "ab" fits, star 2 takes nothing, then y, then "c" fits.
bool glob_match(std::string_view pattern, std::string_view name) {
  if (pattern == name) return true;
  constexpr size_t kNone = std::string_view::npos;
  size_t p = 0, n = 0, star = kNone, star_name = 0, element = 0, character = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = ++p;
      star_name = n;
      if (star == pattern.size()) return true;
    } else if (p < pattern.size() && element_matches(pattern, p, name, n, element, character)) {
      p += element;
      n += character;
    } else if (star != kNone) {
      star_name += character_length(name, star_name);
      p = star;
      n = star_name;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

bool matches_any(const std::vector<std::string>& patterns, std::string_view name) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return glob_match(pattern, name); });
}

}  // namespace partita
