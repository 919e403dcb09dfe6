#include "codegen/scratch_folder.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/cat.h"

namespace partita {

absl::StatusOr<ScratchFolder> ScratchFolder::create(std::string_view what) {
  std::string path = "/tmp/partita-code-XXXXXX";
  if (mkdtemp(path.data()) == nullptr) return absl::UnavailableError(cat("cannot create a folder in /tmp for ", what));
  return ScratchFolder(path);
}

ScratchFolder::~ScratchFolder() {
  for (const std::string& f : files_) unlink(f.c_str());
  if (!path_.empty()) rmdir(path_.c_str());
}

std::string ScratchFolder::file(const std::string& name) {
  files_.push_back(cat(path_, "/", name));
  return files_.back();
}

}  // namespace partita
