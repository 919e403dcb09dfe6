// A new folder under the system's temporary one that goes away with its owner.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>

#include "absl/status/statusor.h"
#include "base/cat.h"

namespace partita {

class TemporaryFolder {
 public:
  // ResourceExhausted where none can be made.
  static absl::StatusOr<TemporaryFolder> create() {
    std::error_code ec;
    std::string name = (std::filesystem::temp_directory_path(ec) / "partita-XXXXXX").string();
    if (ec || ::mkdtemp(name.data()) == nullptr)
      return absl::ResourceExhaustedError(cat("no temporary folder can be made at ", name, "; set TMPDIR"));
    return TemporaryFolder(std::move(name));
  }
  TemporaryFolder(TemporaryFolder&& other) noexcept : path_(std::move(other.path_)) { other.path_.clear(); }
  ~TemporaryFolder() {
    std::error_code ec;
    if (!path_.empty()) std::filesystem::remove_all(path_, ec);
  }
  const std::string& path() const { return path_; }

 private:
  explicit TemporaryFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace partita
