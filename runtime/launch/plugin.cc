#include "runtime/launch/plugin.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "absl/strings/str_join.h"
#include "base/cat.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/launch/trusted_path.h"
#include "runtime/program/bundle_names.h"

namespace partita::runtime {

std::vector<std::string> default_plugin_directories() {
  std::vector<std::string> directories;
  std::error_code error;
  if (const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error); !error) {
    for (const char* folder : {"", "../lib/partita", "../runtime"})
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

namespace {

// The symbol's address in the module, or null and why. Global: Open MPI's own components look for its symbols. Never
// closed: MPI leaves threads and exit handlers behind.
void* load(const std::string& path, const char* symbol, std::string& why) {
  void* module = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  void* found = module == nullptr ? nullptr : ::dlsym(module, symbol);
  if (found != nullptr) return found;
  const char* reason = ::dlerror();
  why = reason == nullptr ? "unknown error" : reason;
  return nullptr;
}

// What was checked is what is loaded: through the same descriptor, which stays open, as the loader knows modules by
// their path.
absl::StatusOr<void*> load_checked(std::string_view file, const char* symbol, const BundleFiles& bundle) {
  const std::string name = cat(kLibrariesName, "/", file);
  if (!bundle.has(name)) return absl::NotFoundError(cat(quote(bundle.folder(), 1000), " has no ", name));
  PARTITA_ASSIGN_OR_RETURN(const auto sealed, bundle.checked(name));
  const int descriptor = ::fcntl(sealed->descriptor(), F_DUPFD_CLOEXEC, 0);
  if (descriptor < 0) return file_error("keep open", sealed->path(), errno);
  std::string why;
  void* found = load(cat("/proc/self/fd/", descriptor), symbol, why);
  if (found != nullptr) return found;
  ::close(descriptor);
  return absl::NotFoundError(cat("cannot load ", quote(sealed->path(), 1000), ": ", why));
}

}  // namespace

absl::StatusOr<void*> load_plugin(std::string_view file, const char* symbol, const PluginSource& source) {
  if (source.bundle != nullptr) return load_checked(file, symbol, *source.bundle);
  std::vector<std::string> reasons;
  for (const std::string& directory : source.directories) {
    const std::filesystem::path path = std::filesystem::path(directory) / file;
    std::error_code error;
    if (!std::filesystem::exists(path, error)) continue;
    if (const absl::Status trusted = check_trusted_path(path.string()); !trusted.ok()) {
      reasons.emplace_back(trusted.message());
      continue;
    }
    if (void* found = load(path.string(), symbol, reasons.emplace_back()); found != nullptr) return found;
  }
  if (!reasons.empty()) return absl::NotFoundError(cat("cannot load ", file, ": ", absl::StrJoin(reasons, "; ")));
  return absl::NotFoundError(cat(file, " is in none of ", absl::StrJoin(source.directories, ", ")));
}

}  // namespace partita::runtime
