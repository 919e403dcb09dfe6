// What `partita --version` says.
#pragma once

#include <string>

namespace partita {

// How this program was built.
struct BuildInfo {
  const char* version;  // "0.1.0"
  const char* commit;  // of git, with "-modified" where tracked files differ from it; empty: built outside a repository
  const char* llvm;    // "19.1.7"
};

// Of this build; made by CMake (tools/cli/build_info.cmake) and linked into the program alone, so that a new commit
// compiles one small file.
extern const BuildInfo kBuildInfo;

// "partita 0.1.0 (commit …)", then a line each: the libraries that it is linked with, and the modules that it finds
// here for MPI and CUDA.
std::string version_text(const BuildInfo& build);

}  // namespace partita
