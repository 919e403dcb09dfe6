// Modules with back ends that need other libraries, loaded at run time.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace partita::runtime {

// Where modules lie: beside the program, in lib/ (of a bundle), in ../lib/partita (of an installed compiler), in
// ../runtime (of a build tree).
std::vector<std::string> default_plugin_directories();

// The first place where `file` lies, not loaded. NotFound.
absl::StatusOr<std::string> find_plugin(std::string_view file, const std::vector<std::string>& directories);

// The address of `symbol` in the first module `file` that can be loaded. It is never unloaded. NotFound says where it
// was looked for, or why it cannot be loaded.
absl::StatusOr<void*> load_plugin(std::string_view file, const char* symbol,
                                  const std::vector<std::string>& directories);

}  // namespace partita::runtime
