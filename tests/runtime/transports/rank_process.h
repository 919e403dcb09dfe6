// A rank of partita_collective_check as a process of its own.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "runtime/launch/launch_environment.h"
#include "runtime/transports/tcp_socket.h"

namespace partita::runtime {

using Clock = std::chrono::steady_clock;

inline const char* const kProgram = PARTITA_BUILD "/runtime/partita_collective_check";

struct Ended {
  int code = -1;  // exit code, 128 + signal, or -1 when it had to be killed
  std::string output;
  double seconds = 0;
};

class Process {
 public:
  Process(const std::vector<std::string>& command, const EnvironmentMap& changes) : start_(Clock::now()) {
    const std::string pattern = (std::filesystem::temp_directory_path() / "partita_process_XXXXXX").string();
    std::vector<char> name(pattern.begin(), pattern.end());
    name.push_back('\0');
    const int fd = ::mkstemp(name.data());
    output_ = name.data();
    EnvironmentMap environment = read_environment();
    for (const auto& [key, value] : changes) environment[key] = value;
    std::vector<std::string> texts;
    for (const auto& [key, value] : environment) texts.push_back(key + "=" + value);
    std::vector<char*> arguments, variables;
    for (const std::string& part : command) arguments.push_back(const_cast<char*>(part.c_str()));
    for (const std::string& text : texts) variables.push_back(const_cast<char*>(text.c_str()));
    arguments.push_back(nullptr);
    variables.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, fd, 1);
    ::posix_spawn_file_actions_adddup2(&actions, fd, 2);
    if (::posix_spawnp(&pid_, command[0].c_str(), &actions, nullptr, arguments.data(), variables.data()) != 0)
      pid_ = -1;
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(fd);
  }
  Process(const Process&) = delete;
  ~Process() { std::filesystem::remove(output_); }

  pid_t pid() const { return pid_; }

  Ended wait(double limit) {
    Ended ended;
    int status = 0;
    while (pid_ > 0 && ::waitpid(pid_, &status, WNOHANG) == 0) {
      if (seconds() > limit) {
        ::kill(pid_, SIGKILL);
        ::waitpid(pid_, &status, 0);
        status = -1;
        break;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    if (pid_ > 0 && status != -1) ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    ended.seconds = seconds();
    std::ifstream file(output_);
    std::stringstream text;
    text << file.rdbuf();
    ended.output = text.str();
    return ended;
  }

 private:
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  const Clock::time_point start_;
  pid_t pid_ = -1;
  std::string output_;
};

inline int free_port() {
  const auto fd = tcp_listen({.address = "127.0.0.1"});
  EXPECT_TRUE(fd.ok()) << fd.status();
  return fd.ok() ? tcp_local_endpoint(*fd).value_or(TcpEndpoint()).port : 0;
}

inline EnvironmentMap rank_environment(int rank, int size, int port) {
  return {
      {"RANK", std::to_string(rank)},
      {"WORLD_SIZE", std::to_string(size)},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", std::to_string(port)},
      {"LOCAL_RANK", ""},
      {"LOCAL_WORLD_SIZE", ""},
      {"TORCHELASTIC_USE_AGENT_STORE", ""},
#ifdef PARTITA_STAND_INS
      {"LD_LIBRARY_PATH", PARTITA_STAND_INS "/nccl_on_host"},  // sanitizers' dlopen knows no other path
#endif
  };
}

}  // namespace partita::runtime
