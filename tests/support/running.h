// A command under way, and waiting for what it does.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "tests/support/temp_folder.h"

namespace partita {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

inline bool wait_until(const std::function<bool()>& condition, double seconds) {
  const auto begin = Clock::now();
  while (!condition()) {
    if (seconds_since(begin) > seconds) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

// A command under way, without a shell in between where it begins with `exec`.
class Running {
 public:
  Running(const std::string& command, std::string output) : output_(std::move(output)) {
    id_ = ::fork();
    if (id_ != 0) return;
    ::setpgid(0, 0);
    const std::string line = command + " > " + output_ + " 2>&1";
    ::execl("/bin/sh", "sh", "-c", line.c_str(), nullptr);
    ::_exit(127);
  }
  ~Running() { end(0); }
  pid_t id() const { return id_; }
  std::string text() const { return TempFolder::read(output_); }
  // Exit code, 128 + signal; -1 where it runs.
  int poll() {
    int status = 0;
    if (::waitpid(id_, &status, WNOHANG) != id_) return -1;
    id_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  // Exit code, 128 + signal; -1 where it had not ended after so many seconds, and was killed.
  int end(double seconds) {
    int status = 0;
    if (id_ <= 0) return -1;
    const bool ended = wait_until([&] { return ::waitpid(id_, &status, WNOHANG) == id_; }, seconds);
    if (!ended) {
      ::kill(-id_, SIGKILL);
      ::waitpid(id_, &status, 0);
    }
    id_ = -1;
    if (!ended) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  pid_t id_ = -1;
  std::string output_;
};

}  // namespace partita
