#include "runtime/launch/plugin.h"

#include <dlfcn.h>

#include <filesystem>

#include "absl/strings/str_join.h"
#include "base/cat.h"
#include "runtime/program/bundle_names.h"

namespace partita::runtime {

std::vector<std::string> default_plugin_directories() {
  std::vector<std::string> directories;
  std::error_code error;
  if (const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error); !error) {
    for (const char* folder : {"", kLibrariesName, "../lib/partita", "../runtime"})
      directories.push_back((self.parent_path() / folder).lexically_normal());
  }
  return directories;
}

absl::StatusOr<std::string> find_plugin(std::string_view file, const std::vector<std::string>& directories) {
  for (const std::string& directory : directories) {
    std::error_code error;
    std::filesystem::path path = std::filesystem::path(directory) / file;
    if (std::filesystem::exists(path, error)) return path.string();
  }
  return absl::NotFoundError(cat(file, " is in none of ", absl::StrJoin(directories, ", ")));
}

absl::StatusOr<void*> load_plugin(std::string_view file, const char* symbol,
                                  const std::vector<std::string>& directories) {
  std::vector<std::string> reasons;
  for (const std::string& directory : directories) {
    const std::filesystem::path path = std::filesystem::path(directory) / file;
    std::error_code error;
    if (!std::filesystem::exists(path, error)) continue;
    // Global: Open MPI's own components look for its symbols. Never closed: MPI leaves threads and exit handlers
    // behind.
    void* module = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    void* found = module == nullptr ? nullptr : ::dlsym(module, symbol);
    if (found != nullptr) return found;
    const char* reason = ::dlerror();
    reasons.emplace_back(reason == nullptr ? "unknown error" : reason);
  }
  if (!reasons.empty()) return absl::NotFoundError(cat("cannot load ", file, ": ", absl::StrJoin(reasons, "; ")));
  return absl::NotFoundError(cat(file, " is in none of ", absl::StrJoin(directories, ", ")));
}

}  // namespace partita::runtime
