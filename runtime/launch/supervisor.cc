#include "runtime/launch/supervisor.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <optional>
#include <thread>

#include "base/cat.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "base/status.h"

extern char** environ;

namespace partita::runtime {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPatience = std::chrono::seconds(10);
constexpr auto kPoll = std::chrono::milliseconds(10);

// A port that is free now. Someone else may take it before the ranks do; they then fail with a code worth a retry.
absl::StatusOr<int> free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  sockaddr* generic = reinterpret_cast<sockaddr*>(&address);
  const bool found = fd >= 0 && ::bind(fd, generic, size) == 0 && ::getsockname(fd, generic, &size) == 0;
  if (fd >= 0) ::close(fd);
  if (!found) return absl::UnavailableError("no free port on this host");
  return ntohs(address.sin_port);
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (std::string& t : texts) list.push_back(t.data());
  list.push_back(nullptr);
  return list;
}

// What a launcher before us said of ranks is not for these processes.
bool is_launch_variable(std::string_view variable) {
  for (const char* name : {"RANK=", "LOCAL_RANK=", "WORLD_SIZE=", "LOCAL_WORLD_SIZE=", "MASTER_ADDR=", "MASTER_PORT=",
                           "OMPI_", "PMI_", "PMIX_", "SLURM_", "TF_CONFIG="}) {
    if (variable.starts_with(name)) return true;
  }
  return false;
}

struct Process {
  pid_t id = 0;
  int rank = -1;
  std::optional<int> code;  // 128 + signal where one ended it
};

class Attempt {
 public:
  Attempt(const LocalJob& job, std::vector<std::string> command) : job_(job), command_(std::move(command)) {}
  ~Attempt() {
    tell(SIGKILL);
    for (Process& p : processes_) {
      if (!p.code) ::waitpid(p.id, nullptr, 0);
    }
  }

  absl::Status start() {
    int port = 0;
    if (job_.ranks > 0) {
      PARTITA_ASSIGN_OR_RETURN(port, free_port());
    }
    for (int rank = 0; rank < std::max(1, job_.ranks); ++rank) PARTITA_RETURN_IF_ERROR(spawn(rank, port));
    return absl::OkStatus();
  }

  // The first process that failed, or nothing.
  std::optional<Process> wait() {
    bool told = false;
    std::optional<Clock::time_point> end;
    while (std::any_of(processes_.begin(), processes_.end(), [](const Process& p) { return !p.code; })) {
      reap();
      if (job_.stop != nullptr && job_.stop->load() && !told) {
        tell(SIGTERM);
        told = true;
      }
      if (failed_ && !end) end = Clock::now() + kPatience;
      if (end && Clock::now() > *end) {
        tell(SIGKILL);
        end = Clock::now() + kPatience;
      }
      std::this_thread::sleep_for(kPoll);
    }
    return failed_;
  }

 private:
  absl::Status spawn(int rank, int port) {
    std::vector<std::string> environment;
    for (char** e = environ; *e != nullptr; ++e) {
      if (job_.ranks == 0 || !is_launch_variable(*e)) environment.emplace_back(*e);
    }
    if (job_.ranks > 0) {
      for (const auto& [name, value] : {std::pair{"RANK", rank},
                                        {"LOCAL_RANK", rank},
                                        {"WORLD_SIZE", job_.ranks},
                                        {"LOCAL_WORLD_SIZE", job_.ranks},
                                        {"MASTER_PORT", port}})
        environment.push_back(cat(name, "=", value));
      environment.emplace_back("MASTER_ADDR=127.0.0.1");
    }
    // This process holds SIGTERM back; its children must not.
    posix_spawnattr_t attributes;
    ::posix_spawnattr_init(&attributes);
    sigset_t none;
    sigemptyset(&none);
    ::posix_spawnattr_setsigmask(&attributes, &none);
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
    Process p{.id = 0, .rank = rank, .code = {}};
    const int error = ::posix_spawn(&p.id, command_[0].c_str(), nullptr, &attributes, pointers(command_).data(),
                                    pointers(environment).data());
    ::posix_spawnattr_destroy(&attributes);
    if (error != 0) return file_error("start", command_[0], error);
    processes_.push_back(p);
    return absl::OkStatus();
  }

  void reap() {
    for (Process& p : processes_) {
      int status = 0;
      if (p.code || ::waitpid(p.id, &status, WNOHANG) != p.id) continue;
      p.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      if (WIFSIGNALED(status) && job_.ranks > 0)
        std::fprintf(stderr, "partita: rank %d was ended by signal %d\n", p.rank, WTERMSIG(status));
      // A mistake of the user's says more than the peers that were lost over it.
      if (*p.code != 0 && (!failed_ || (*failed_->code >= 128 && *p.code < 128))) failed_ = p;
    }
  }

  void tell(int signal) {
    for (const Process& p : processes_) {
      if (!p.code) ::kill(p.id, signal);
    }
  }

  const LocalJob& job_;
  std::vector<std::string> command_;
  std::vector<Process> processes_;
  std::optional<Process> failed_;
};

absl::Status status_of(const Process& p, const LocalJob& job) {
  const std::string who = job.ranks > 0 ? cat("rank ", p.rank) : "the run";
  const std::string text = cat(who, *p.code > 128 ? cat(" ended with code ", *p.code) : " failed; it says above why");
  switch (*p.code) {
    case 1:
      return absl::InternalError(text);
    case 2:
      return absl::InvalidArgumentError(text);
    case 3:
      return absl::ResourceExhaustedError(text);
    default:
      return *p.code == 143 ? absl::CancelledError(text) : absl::UnavailableError(text);
  }
}

}  // namespace

absl::Status run_job(const LocalJob& job) {
  std::vector<std::string> command = job.command;
  for (int restarts = 0;; ++restarts) {
    std::optional<Process> failed;
    {
      Attempt attempt(job, command);
      PARTITA_RETURN_IF_ERROR(attempt.start());
      failed = attempt.wait();
    }
    if (!failed) return absl::OkStatus();
    const bool stopped = job.stop != nullptr && job.stop->load();
    if (*failed->code < 128 || stopped || restarts >= job.max_restarts) return status_of(*failed, job);
    std::fprintf(stderr, "partita: %s; restart %d of %d, from the last good checkpoint\n",
                 std::string(status_of(*failed, job).message()).c_str(), restarts + 1, job.max_restarts);
    if (restarts == 0) command.insert(command.end(), job.resume.begin(), job.resume.end());
  }
}

}  // namespace partita::runtime
