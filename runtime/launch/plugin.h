// Modules with back ends that need other libraries, loaded at run time.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/program/bundle_files.h"

namespace partita::runtime {

// Where modules lie: beside the program, in ../lib/partita (of an installed compiler), in ../runtime (of a build tree).
std::vector<std::string> default_plugin_directories();

// Where modules come from.
struct PluginSource {
  std::vector<std::string> directories = default_plugin_directories();
  std::shared_ptr<const BundleFiles> bundle = nullptr;  // of a rank: its lib/ alone, each checked before it is loaded
};

// The first place where `file` lies, not loaded. NotFound.
absl::StatusOr<std::string> find_plugin(std::string_view file, const std::vector<std::string>& directories);

// The address of `symbol` in the first module `file` that can be loaded. It is never unloaded. NotFound says where it
// was looked for, or why it cannot be loaded; DataLoss where the bundle's is damaged.
absl::StatusOr<void*> load_plugin(std::string_view file, const char* symbol, const PluginSource& source);

}  // namespace partita::runtime
