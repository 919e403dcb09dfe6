// Runs a program of the build as a user would, and keeps what it says.
#pragma once

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <string>

namespace partita {

struct Outcome {
  int code = -1;                 // exit code; 128 + signal where one ended it
  std::string text;              // standard output and error
  double seconds = 0;            // from start to end
  double processor_seconds = 0;  // of the program and what it ran, whatever else the machine does
  int64_t peak_bytes = 0;        // resident memory at most, children included
};

// Through the shell.
inline Outcome run_command(const std::string& command) {
  Outcome out;
  int ends[2];
  if (pipe(ends) != 0) return out;
  auto start = std::chrono::steady_clock::now();
  pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], 1);
    dup2(ends[1], 2);
    close(ends[0]);
    close(ends[1]);
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  close(ends[1]);
  std::array<char, 4096> buffer;
  for (ssize_t n; (n = read(ends[0], buffer.data(), buffer.size())) > 0;)
    out.text.append(buffer.data(), static_cast<size_t>(n));
  close(ends[0]);
  int status = 0;
  rusage used{};
  if (child < 0 || wait4(child, &status, 0, &used) != child) return out;
  out.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  for (const timeval& t : {used.ru_utime, used.ru_stime})
    out.processor_seconds += static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  out.peak_bytes = int64_t{used.ru_maxrss} * 1024;
  return out;
}

inline std::string partita_program() { return std::string(PARTITA_BUILD) + "/tools/partita"; }
inline Outcome run_partita(const std::string& arguments) { return run_command(partita_program() + " " + arguments); }

}  // namespace partita
