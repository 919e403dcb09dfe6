#include "tools/proof/confined.h"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>

#include "base/cat.h"
#include "base/fault.h"
#include "base/status.h"
#include "nlohmann/json.hpp"

namespace partita {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

// Writing of every kind that Landlock's first version knows.
constexpr uint64_t kWrites = LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_REMOVE_DIR |
                             LANDLOCK_ACCESS_FS_REMOVE_FILE | LANDLOCK_ACCESS_FS_MAKE_CHAR |
                             LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_MAKE_REG | LANDLOCK_ACCESS_FS_MAKE_SOCK |
                             LANDLOCK_ACCESS_FS_MAKE_FIFO | LANDLOCK_ACCESS_FS_MAKE_BLOCK | LANDLOCK_ACCESS_FS_MAKE_SYM;

// System calls that generated code has no use for: they fail with EACCES.
constexpr uint32_t kDenied[] = {SYS_socket, SYS_connect,
                                SYS_bind,   SYS_listen,
                                SYS_accept, SYS_accept4,
                                SYS_execve, SYS_execveat,
                                SYS_ptrace, SYS_process_vm_writev,
                                SYS_kill,   SYS_pidfd_send_signal,
                                SYS_mount,  SYS_chroot};

std::string reason() { return std::strerror(errno); }

std::string leave_network() {
  if (::unshare(CLONE_NEWNET) == 0 || ::unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0) return "";
  return reason();
}

std::string deny_calls() {
  std::vector<sock_filter> code = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
  };
  for (uint32_t call : kDenied) {
    code.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1));
    code.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES));
  }
  code.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog program{static_cast<unsigned short>(code.size()), code.data()};
  return ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0 ? "" : reason();
}

std::string write_only_below(const std::string& folder) {
  landlock_ruleset_attr rules{};
  rules.handled_access_fs = kWrites;
  const int set = static_cast<int>(::syscall(SYS_landlock_create_ruleset, &rules, sizeof rules, 0));
  if (set < 0) return reason();
  std::string why;
  landlock_path_beneath_attr place{};
  place.allowed_access = kWrites;
  place.parent_fd = ::open(folder.c_str(), O_PATH | O_CLOEXEC);
  const bool done = place.parent_fd >= 0 &&
                    ::syscall(SYS_landlock_add_rule, set, LANDLOCK_RULE_PATH_BENEATH, &place, 0) == 0 &&
                    ::syscall(SYS_landlock_restrict_self, set, 0) == 0;
  if (!done) why = reason();
  if (place.parent_fd >= 0) ::close(place.parent_fd);
  ::close(set);
  return why;
}

std::string limit(int64_t memory_bytes) {
  const rlimit none{0, 0}, memory{static_cast<rlim_t>(memory_bytes), static_cast<rlim_t>(memory_bytes)};
  return ::setrlimit(RLIMIT_CORE, &none) == 0 && ::setrlimit(RLIMIT_DATA, &memory) == 0 ? "" : reason();
}

// Of the child: what it is held to, and what not.
Json confine(const Confinement& limits) {
  Json told = {{"held", Json::array()}, {"lacking", Json::array()}};
  auto tell = [&](const std::string& what, const std::string& why) {
    told[why.empty() ? "held" : "lacking"].push_back(why.empty() ? what : cat(what, " (", why, ")"));
  };
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  tell("a network of its own, without interfaces", leave_network());
  tell(cat("memory of ", limits.memory_bytes >> 20, " MiB"), limit(limits.memory_bytes));
  tell("writing in its own folder alone", write_only_below(limits.folder));
  tell("no sockets, no other programs, no other processes", deny_calls());
  return told;
}

void write_whole(int pipe, const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = ::write(pipe, text.data() + at, text.size() - at);
    if (n <= 0) return;
    at += static_cast<size_t>(n);
  }
}

[[noreturn]] void run_child(const Confinement& limits, absl::FunctionRef<absl::StatusOr<std::string>()> work,
                            int pipe) {
  ::setenv("TMPDIR", limits.folder.c_str(), 1);  // for the linker's files
  Json said = confine(limits);
  absl::StatusOr<std::string> result = absl::InternalError("");
  try {
    result = work();
  } catch (...) {
    result = with_context(status_of_exception(), "numeric, within its limits");
  }
  said["code"] = static_cast<int>(result.status().code());
  said["text"] = result.ok() ? *result : std::string(result.status().message());
  write_whole(pipe, said.dump(-1, ' ', false, Json::error_handler_t::replace));
  std::fflush(nullptr);
  ::_exit(0);
}

// All that the child says until it ends, or the time does.
bool read_until(int pipe, Clock::time_point end, std::string& text) {
  char buffer[4096];
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    pollfd wait{pipe, POLLIN, 0};
    if (left <= 0) return false;
    if (::poll(&wait, 1, static_cast<int>(std::min<int64_t>(left, 1000))) <= 0) continue;
    const ssize_t n = ::read(pipe, buffer, sizeof buffer);
    if (n <= 0) return true;
    text.append(buffer, static_cast<size_t>(n));
  }
}

}  // namespace

absl::StatusOr<ConfinedResult> run_confined(const Confinement& limits,
                                            absl::FunctionRef<absl::StatusOr<std::string>()> work) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return absl::ResourceExhaustedError(cat("numeric: no pipe: ", reason()));
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) run_child(limits, work, ends[1]);
  ::close(ends[1]);
  std::string text;
  const bool in_time = child > 0 && read_until(ends[0], Clock::now() + std::chrono::seconds(limits.seconds), text);
  ::close(ends[0]);
  if (child < 0) return absl::ResourceExhaustedError(cat("numeric: no process: ", reason()));
  if (!in_time) ::kill(child, SIGKILL);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!in_time)
    return absl::ResourceExhaustedError(
        cat("numeric: no end within ", limits.seconds, " s; compare fewer steps (--steps)"));
  if (WIFSIGNALED(status))
    return absl::AbortedError(cat("numeric: the process that ran the bundle's code was ended by signal ",
                                  WTERMSIG(status), " (", ::strsignal(WTERMSIG(status)), ")"));
  const Json said = Json::parse(text, nullptr, false);
  if (!said.is_object()) return absl::AbortedError("numeric: the process that ran the bundle's code said nothing");
  const auto code = static_cast<absl::StatusCode>(said.value("code", 2));
  if (code != absl::StatusCode::kOk) return absl::Status(code, said.value("text", ""));
  return ConfinedResult{said.value("text", ""), said["held"], said["lacking"]};
}

}  // namespace partita
