#include "tools/machine/cuda_toolkit.h"

#include <unistd.h>

#include <cstdlib>
#include <vector>

#include "absl/strings/str_split.h"
#include "base/cat.h"

namespace partita {

absl::StatusOr<std::string> find_assembler() {
  std::vector<std::string> folders;
  if (const char* path = std::getenv("PATH")) folders = absl::StrSplit(path, ':', absl::SkipEmpty());
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const char* home = std::getenv(variable)) folders.push_back(cat(home, "/bin"));
  }
  folders.push_back("/usr/local/cuda/bin");
  for (const std::string& folder : folders) {
    std::string program = cat(folder, "/ptxas");
    if (access(program.c_str(), X_OK) == 0) return program;
  }
  return absl::FailedPreconditionError(
      "code for a GPU needs ptxas, the CUDA toolkit's assembler; it is not on PATH, in CUDA_HOME/bin or in "
      "/usr/local/cuda/bin (get it with: apt-get install cuda-nvcc-13-0, or pip install nvidia-cuda-nvcc)");
}

}  // namespace partita
