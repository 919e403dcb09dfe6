// A new folder under the system's temporary one that goes away with its owner.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/cat.h"

namespace partita {

class TemporaryFolder {
 public:
  // Unavailable, naming `what` it is for, where none can be made.
  static absl::StatusOr<TemporaryFolder> create(std::string_view what) {
    std::error_code ec;
    std::string name = (std::filesystem::temp_directory_path(ec) / "partita-XXXXXX").string();
    if (ec || ::mkdtemp(name.data()) == nullptr)
      return absl::UnavailableError(cat("cannot create a folder at ", name, " for ", what, "; set TMPDIR"));
    return TemporaryFolder(std::move(name));
  }
  TemporaryFolder(TemporaryFolder&& other) noexcept : path_(std::move(other.path_)) { other.path_.clear(); }
  ~TemporaryFolder() {
    std::error_code ec;
    if (!path_.empty()) std::filesystem::remove_all(path_, ec);
  }
  const std::string& path() const { return path_; }
  // The path of a file or folder of that name in it.
  std::string file(std::string_view name) const { return cat(path_, "/", name); }

 private:
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace partita
