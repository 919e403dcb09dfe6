// Shell globs over names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace partita {

// Shell glob over the whole of `name`, as Python's fnmatch on UTF-8 characters: `*` any run (dots too), `?` one
// character, `[a-c]`, `[!a]` and `[^a]` classes of ASCII; a `[` that is never closed is itself. A pattern equal to the
// name always matches. At most |pattern| * |name| steps.
bool glob_match(std::string_view pattern, std::string_view name);
bool matches_any(const std::vector<std::string>& patterns, std::string_view name);

}  // namespace partita
