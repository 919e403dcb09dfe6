// A folder in /tmp for the files of a linker or an assembler, gone with its owner.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace partita {

class ScratchFolder {
 public:
  // Unavailable, naming `what` it is for, where there is no room for it.
  static absl::StatusOr<ScratchFolder> create(std::string_view what);
  ScratchFolder(ScratchFolder&& other) noexcept
      : path_(std::exchange(other.path_, "")), files_(std::move(other.files_)) {}
  ScratchFolder& operator=(ScratchFolder&&) = delete;
  ~ScratchFolder();

  // The path of a file of that name, which is removed with the folder.
  std::string file(const std::string& name);

 private:
  explicit ScratchFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
  std::vector<std::string> files_;
};

}  // namespace partita
