#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace partita {

// The path as messages begin with it: escaped as quote does, without the quotes.
std::string shown_path(const std::string& path);

// The bytes of a file that a person or a tool wrote, a pipe too. Not more than `most` + 1 of them are read: longer text
// is for the caller to refuse, in words of its own. NotFound or InvalidArgument (a folder) or DataLoss name the path.
absl::StatusOr<std::string> read_text_file(const std::string& path, int64_t most);

}  // namespace partita
