// Text from outside (tensor names, paths, file contents) made safe to print in messages.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace partita {

// 'text' in single quotes, control characters and invalid UTF-8 escaped, at most `limit` bytes shown ("…" marks the
// cut).
std::string quote(std::string_view text, size_t limit = 160);

// "'a', 'b', 'c' and 12 more"; "none" when empty.
std::string quote_list(const std::vector<std::string>& names, size_t shown = 8);

// The first candidate that `name` begins, else the one with the smallest edit distance to it, or "" when none is near
// (distance above half the longer length).
std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates);

// Whether `text` is well-formed UTF-8 (no surrogates, no overlong forms).
bool is_utf8(std::string_view text);

}  // namespace partita
