// A new folder under the system's temporary one that goes away with its owner.
#pragma once

#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/cat.h"
#include "base/mapped_file.h"

namespace partita {

class TemporaryFolder {
 public:
  // Where none can be made: an error that names `what` it is for and where it should be.
  static absl::StatusOr<TemporaryFolder> create(std::string_view what) {
    const std::string action = cat("make a folder for ", what, " in");
    auto with_remedy = [](const absl::Status& error) {
      return absl::Status(error.code(), cat(error.message(), "; set TMPDIR to a folder that can be written"));
    };
    std::error_code error;
    const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
    if (error) {  // it does not say where
      const char* said = ::getenv("TMPDIR");
      return with_remedy(file_error(action, said == nullptr ? "/tmp" : said, error.value()));
    }
    std::string name = (parent / "partita-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) return with_remedy(file_error(action, parent.string(), errno));
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
