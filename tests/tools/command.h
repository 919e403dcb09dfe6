// Runs a program of the build as a user would, and keeps what it says.
#pragma once

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <string>

namespace partita {

struct Outcome {
  int code = -1;     // exit code; 128 + signal where one ended it
  std::string text;  // standard output and error
};

inline Outcome run_command(const std::string& command) {
  Outcome out;
  std::FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return out;
  std::array<char, 4096> buffer;
  while (size_t n = fread(buffer.data(), 1, buffer.size(), pipe)) out.text.append(buffer.data(), n);
  int status = pclose(pipe);
  out.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return out;
}

inline std::string partita_program() { return std::string(PARTITA_BUILD) + "/tools/partita"; }

}  // namespace partita
