#include "runtime/launch/supervisor.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <numeric>
#include <optional>
#include <span>
#include <thread>

#include "base/cat.h"
#include "base/exit_code.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/launch/last_start.h"
#include "runtime/launch/launch_environment.h"
#include "runtime/launch/rank_end.h"
#include "runtime/record/diagnosis.h"
#include "runtime/record/flight_recorder.h"
#include "runtime/record/process.h"

extern char** environ;

namespace partita::runtime {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPatience = std::chrono::milliseconds(1500);
constexpr auto kPoll = std::chrono::milliseconds(10);

double seconds_of(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

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
  for (const char* name :
       {"RANK=", "LOCAL_RANK=", "WORLD_SIZE=", "LOCAL_WORLD_SIZE=", "MASTER_ADDR=", "MASTER_PORT=", "OMPI_", "PMI_",
        "PMIX_", "SLURM_", "TF_CONFIG=", "TORCHELASTIC_", "PARTITA_DEVICE=", "PARTITA_SEARCHER="}) {
    if (variable.starts_with(name)) return true;
  }
  return false;
}

// Best effort, of a process that was just forked.
void step_aside() {
  ::dup2(2, 1);
  ::setpriority(PRIO_PROCESS, 0, 19);
  const int first_to_go = ::open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (first_to_go < 0) return;
  [[maybe_unused]] const ssize_t written = ::write(first_to_go, "1000", 4);
  ::close(first_to_go);
}

// A child that the kernel ends when this process ends. posix_spawn cannot say so; what the child does between fork and
// exec is safe beside other threads. `kept`: a descriptor that it has too; -1: none. `aside`: LocalJob's.
absl::StatusOr<pid_t> start_process(std::vector<std::string> command, std::vector<std::string> environment, int kept,
                                    bool aside) {
  const std::vector<char*> arguments = pointers(command), variables = pointers(environment);
  int told[2];  // the error of exec
  if (::pipe2(told, O_CLOEXEC) != 0) return absl::UnavailableError("no descriptors for a pipe");
  const pid_t parent = ::getpid(), child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(static_cast<int>(ExitCode::kLost));  // it ended before the line above
    // This process holds signals back, and its children must not, but for the wish to save, which would end them until
    // they listen.
    sigset_t held;
    sigemptyset(&held);
    sigaddset(&held, SIGUSR1);
    ::sigprocmask(SIG_SETMASK, &held, nullptr);
    if (kept >= 0) ::fcntl(kept, F_SETFD, 0);
    if (aside) step_aside();
    ::execve(arguments[0], arguments.data(), variables.data());
    const int error = errno;
    [[maybe_unused]] const ssize_t written = ::write(told[1], &error, sizeof error);
    ::_exit(static_cast<int>(ExitCode::kUsage));
  }
  int error = child < 0 ? errno : 0;
  ::close(told[1]);
  if (child > 0 && ::read(told[0], &error, sizeof error) == sizeof error) ::waitpid(child, nullptr, 0);
  ::close(told[0]);
  if (error != 0) return file_error("start", command[0], error);
  return child;
}

struct Process {
  pid_t id = 0;
  int rank = -1;
  std::optional<int> code;  // 128 + signal where one ended it
  KnownEnd end;
};

class Attempt {
 public:
  // `devices`: of each rank, by number on this host.
  Attempt(const LocalJob& job, std::vector<std::string> command, std::span<const int> devices)
      : job_(job), command_(std::move(command)), devices_(devices) {}
  ~Attempt() {
    tell(SIGKILL);
    for (Process& p : processes_) {
      if (!p.code) ::waitpid(p.id, nullptr, 0);
    }
    for (int record : records_) ::close(record);
  }

  absl::Status start() {
    int port = 0;
    if (job_.ranks > 0) {
      PARTITA_ASSIGN_OR_RETURN(port, free_port());
    }
    for (int rank = 0; rank < std::max(1, job_.ranks); ++rank) PARTITA_RETURN_IF_ERROR(spawn(rank, port));
    return absl::OkStatus();
  }

  // How the run ended.
  AttemptEnd wait() {
    bool told = false, ended = false;
    std::optional<Clock::time_point> end;
    while (std::any_of(processes_.begin(), processes_.end(), [](const Process& p) { return !p.code; })) {
      reap();
      if (job_.stop != nullptr && job_.stop->load() && !told) {
        tell(SIGTERM);
        told = true;
      }
      if (job_.save != nullptr && job_.save->exchange(false)) tell(SIGUSR1);
      if (failed_ && !end) end = Clock::now() + kPatience;
      if (end && !ended && Clock::now() > *end) {
        for (Process& p : processes_) kill(p);
        ended = true;
      }
      for (Process& p : processes_) {  // who is stopped will not end by itself
        if (end && !ended && process_state(p.id, process_start(p.id)) == 'T') kill(p);
      }
      std::this_thread::sleep_for(kPoll);
    }
    return failed_ == nullptr ? AttemptEnd{} : outcome();
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
      environment.push_back(cat(kDeviceVariable, "=", devices_[static_cast<size_t>(rank)]));
    }
    environment.insert(environment.end(), job_.environment.begin(), job_.environment.end());
    Process p{.id = 0, .rank = rank, .code = {}, .end = {.rank = rank}};
    int record = -1;
    if (job_.ranks > 0) {
      PARTITA_ASSIGN_OR_RETURN(
          record, make_flight_file(job_.records.empty() ? "" : flight_file(job_.records, rank), FormerRecord::kGoes));
      records_.push_back(record);
      environment.push_back(cat(kRecordVariable, "=", record));
    }
    PARTITA_ASSIGN_OR_RETURN(p.id, start_process(command_, std::move(environment), record, job_.aside));
    processes_.push_back(std::move(p));
    return absl::OkStatus();
  }

  void reap() {
    for (Process& p : processes_) {
      int status = 0;
      if (p.code || ::waitpid(p.id, &status, WNOHANG) != p.id) continue;
      p.code = WIFEXITED(status) ? WEXITSTATUS(status) : kFirstRetryCode + WTERMSIG(status);
      p.end.code = *p.code;
      p.end.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
      // A mistake of the user's says more than the peers that were lost over it, and so does a rank that left as all
      // were told to: one that is a moment later finds it gone.
      const bool stops = job_.stop != nullptr && job_.stop->load() && *p.code == static_cast<int>(ExitCode::kStopped);
      if (*p.code != 0 && (failed_ == nullptr || (worth_retry(*failed_->code) && (stops || !worth_retry(*p.code)))))
        failed_ = &p;
    }
  }

  AttemptEnd outcome() const {
    const int code = *failed_->code;
    const std::string who = job_.ranks > 0 ? cat("rank ", failed_->rank) : "the run";
    if (!worth_retry(code)) return {status_of_exit(code, cat(who, " failed; it says above why"))};
    if (code != static_cast<int>(ExitCode::kStopped)) {
      const std::vector<FlightView> views = read_records();
      const Diagnosis d = find_cause(views);
      for (const RankFate& f : d.others) std::fprintf(stderr, "partita: %s\n", d.other_text(f).c_str());
      if (d.root) {
        // A rank that saved and left as it was told to has obeyed, whatever then ended its process.
        const int cause = d.root->kind == FateKind::kTold ? static_cast<int>(ExitCode::kStopped) : code;
        AttemptEnd end{.status = status_of_exit(cause, cat("root cause: ", d.root_text())),
                       .killed = was_killed(*d.root)};
        add_place(views, d, end);
        return end;
      }
    }
    AttemptEnd end{status_of_exit(code, cat(who, " ended with code ", code))};
    // Before any rank had a record of it: whoever was killed was the first to end.
    if (job_.ranks > 0 && code == 128 + SIGKILL) end.rank = failed_->rank;
    return end;
  }

  std::vector<FlightView> read_records() const {
    std::vector<FlightView> views;
    for (int record : records_) {
      // Of a rank that ended before it had a record there is none.
      if (const auto reader = FlightReader::map(record); reader.ok()) views.push_back((*reader)->view());
    }
    return views;
  }

  Diagnosis find_cause(const std::vector<FlightView>& views) const {
    std::vector<KnownEnd> ends;
    for (size_t k = 0; k < records_.size(); ++k) ends.push_back(processes_[k].end);
    return diagnose(views, ends, flight_clock());
  }

  bool was_killed(const RankFate& root) const {
    const KnownEnd& end = processes_[static_cast<size_t>(root.rank)].end;
    return end.signal == SIGKILL && !end.by_supervisor;
  }

  static void kill(Process& p) {
    if (p.code) return;
    p.end.by_supervisor = true;
    ::kill(p.id, SIGKILL);
  }

  void tell(int signal) {
    for (const Process& p : processes_) {
      if (!p.code) ::kill(p.id, signal);
    }
  }

  const LocalJob& job_;
  std::vector<std::string> command_;
  const std::span<const int> devices_;
  std::vector<Process> processes_;
  std::vector<int> records_;  // descriptors, by rank
  const Process* failed_ = nullptr;
};

// The ranks of a job, which become fewer where one is lost for good.
class Crew {
 public:
  explicit Crew(LocalJob& job) : job_(job), devices_(static_cast<size_t>(std::max(1, job.ranks))) {
    std::iota(devices_.begin(), devices_.end(), 0);
  }
  std::span<const int> devices() const { return devices_; }

  // After an end that is worth a retry; true where the next attempt has fewer.
  bool shrink(const AttemptEnd& end) {
    in_a_row_ = end.rank && end.rank == last_ && end.seconds < Restarts::kWell ? in_a_row_ + 1 : 1;
    last_ = end.rank;
    if (!end.rank || in_a_row_ < kLostForGood || !worth_retry(exit_code(end.status))) return false;
    const auto fewer = std::find_if(job_.plans.begin(), job_.plans.end(), [&](int n) { return n < job_.ranks; });
    if (fewer == job_.plans.end()) return false;
    const int device = devices_[static_cast<size_t>(*end.rank)];
    devices_.erase(devices_.begin() + *end.rank);
    std::fprintf(stderr,
                 "partita: rank %d was lost %d times in a row; going on without device %d of this host, with %d %s\n",
                 *end.rank, in_a_row_, device, *fewer, *fewer == 1 ? "rank" : "ranks");
    job_.ranks = *fewer;
    devices_.resize(static_cast<size_t>(*fewer));
    last_.reset();
    return true;
  }

 private:
  LocalJob& job_;
  std::vector<int> devices_;  // by rank
  std::optional<int> last_;   // that was the root cause
  int in_a_row_ = 0;
};

}  // namespace

absl::Status run_job(LocalJob job) {
  std::vector<std::string> command = job.command;
  Restarts restarts(job.restarts);
  Crew crew(job);
  const auto stopped = [&] { return job.stop != nullptr && job.stop->load(); };
  if (job.ranks > 0) say(stderr, take_last_start(job.records, 0));
  for (;;) {
    const Clock::time_point begin = Clock::now();
    AttemptEnd end;
    {
      Attempt attempt(job, command, crew.devices());
      PARTITA_RETURN_IF_ERROR(attempt.start());
      end = attempt.wait();
    }
    if (end.status.ok() || stopped()) return end.status;
    end.seconds = seconds_of(Clock::now() - begin);
    // A hang that comes again at one place is of the run, and no device that was lost.
    const bool loops = restarts.hangs_again(end);
    if (!loops && restarts.count() < job.restarts.most && crew.shrink(end)) restarts.forget_step();
    const double now = seconds_of(Clock::now().time_since_epoch());
    PARTITA_ASSIGN_OR_RETURN(const double seconds, restarts.next(end, now));
    std::fprintf(stderr, "partita: %s; restart %d of %d, from the last good checkpoint%s\n",
                 std::string(end.status.message()).c_str(), restarts.count(), job.restarts.most,
                 seconds > 0 ? cat(", in ", seconds, " s").c_str() : "");
    if (!sleep_unless(stopped, seconds)) return end.status;
    if (restarts.count() == 1) command.insert(command.end(), job.resume.begin(), job.resume.end());
  }
}

}  // namespace partita::runtime
