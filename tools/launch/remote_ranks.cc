#include "tools/launch/remote_ranks.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "base/cat.h"
#include "base/exit_code.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/checkpoint/checkpoint_manifest.h"
#include "runtime/launch/shell_words.h"
#include "runtime/record/diagnosis.h"
#include "runtime/record/flight_recorder.h"

extern char** environ;

namespace partita {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPatience = std::chrono::seconds(15), kSaving = std::chrono::seconds(120);
constexpr auto kAnswer = std::chrono::seconds(60);  // a host that ssh reaches may hang all the same
constexpr auto kPoll = std::chrono::milliseconds(20);
constexpr int kSshFailed = 255;

// The host of a rank, and which of its ranks it is.
std::pair<size_t, int> place_of(const std::vector<Host>& hosts, int rank) {
  size_t host = 0;
  for (; rank >= hosts[host].slots; ++host) rank -= hosts[host].slots;
  return {host, rank};
}

// Signals of the terminal, and those that this process holds back, are for this process to pass on.
absl::StatusOr<pid_t> start_ssh(std::vector<std::string>& words, int input) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, input, 0);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setpgroup(&attributes, 0);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  pid_t id = 0;
  const int error = ::posix_spawnp(&id, arguments[0], &actions, &attributes, arguments.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return file_error("start", words[0], error);
  return id;
}

struct Process {
  pid_t id = 0;
  int rank = 0;
  int input = -1;           // the rank stays as long as it is open
  std::optional<int> code;  // 128 + signal where one ended it
};

class Attempt {
 public:
  Attempt(const LaunchJob& job, const std::vector<Host>& hosts) : job_(job), hosts_(hosts) {}
  ~Attempt() {
    for (Process& p : processes_) {
      if (p.input >= 0) ::close(p.input);
      if (p.code) continue;
      ::kill(p.id, SIGKILL);
      ::waitpid(p.id, nullptr, 0);
    }
  }

  absl::Status start(std::vector<std::string> ssh, const std::string& secret, bool again) {
    ssh.insert(ssh.end(), {"", ""});
    for (int rank = 0; rank < job_.ranks; ++rank) {
      ssh[ssh.size() - 2] = hosts_[place_of(hosts_, rank).first].name;
      ssh.back() = remote_rank_line(job_, hosts_, rank, again);
      PARTITA_RETURN_IF_ERROR(spawn(rank, ssh, secret + "\n"));
    }
    return absl::OkStatus();
  }

  // The first process that failed, or nothing.
  std::optional<Process> wait(const std::function<bool()>& told) {
    std::optional<Clock::time_point> end;
    bool leaving = false;
    while (std::any_of(processes_.begin(), processes_.end(), [](const Process& p) { return !p.code; })) {
      reap();
      if (failed_ && !end) end = Clock::now() + kPatience;
      const bool late = end && Clock::now() > *end;
      if (late && leaving) break;  // the destructor ends what is left
      if (!leaving && (late || told())) {
        // Where ranks are lost there is nothing to save: a rank that is stopped is not waited for.
        const std::string_view grace = told() ? "" : "5\n";
        for (Process& p : processes_) {
          [[maybe_unused]] const ssize_t written = ::write(p.input, grace.data(), grace.size());
          ::close(std::exchange(p.input, -1));
        }
        leaving = true;
        end = Clock::now() + kSaving;
      }
      std::this_thread::sleep_for(kPoll);
    }
    return failed_;
  }

 private:
  absl::Status spawn(int rank, std::vector<std::string>& words, const std::string& first_line) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) return file_error("make a pipe for", words[0], errno);
    const auto id = start_ssh(words, ends[0]);
    ::close(ends[0]);
    if (!id.ok()) {
      ::close(ends[1]);
      return id.status();
    }
    // A pipe holds this line, read or not. An ssh that has failed already is no reason to end.
    sigset_t broken;
    sigemptyset(&broken);
    sigaddset(&broken, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &broken, nullptr);
    [[maybe_unused]] const ssize_t written = ::write(ends[1], first_line.data(), first_line.size());
    processes_.push_back({.id = *id, .rank = rank, .input = ends[1], .code = {}});
    return absl::OkStatus();
  }

  void reap() {
    for (Process& p : processes_) {
      int status = 0;
      if (p.code || ::waitpid(p.id, &status, WNOHANG) != p.id) continue;
      p.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      // A mistake of the user's says more than the peers that were lost over it.
      if (*p.code != 0 && (!failed_ || (*failed_->code >= 128 && *p.code < 128))) failed_ = p;
    }
  }

  const LaunchJob& job_;
  const std::vector<Host>& hosts_;
  std::vector<Process> processes_;
  std::optional<Process> failed_;
};

absl::Status status_of(const Process& p, const std::vector<Host>& hosts) {
  const int code = *p.code;
  const std::string who = cat("rank ", p.rank, " on ", quote(hosts[place_of(hosts, p.rank).first].name));
  if (code == kSshFailed) return absl::UnavailableError(cat(who, ": ssh failed, or was cut off"));
  if (code == static_cast<int>(ExitCode::kStopped)) return absl::CancelledError(cat(who, " was told to leave"));
  return status_of_exit(
      code, worth_retry(code) ? cat(who, " ended with code ", code) : cat(who, " failed; it says above why"));
}

double seconds_of(Clock::time_point time) { return std::chrono::duration<double>(time.time_since_epoch()).count(); }

// 0: none.
int largest_plan(const LaunchJob& job, int slots) {
  if (job.plans.empty()) return job.ranks;
  const auto fits = std::find_if(job.plans.begin(), job.plans.end(), [&](int ranks) { return ranks <= slots; });
  return fits == job.plans.end() ? 0 : *fits;
}

// Seen from here: none where this host does not share the folder.
std::optional<int64_t> newest_checkpoint(const LaunchJob& job) {
  if (job.checkpoints.empty()) return std::nullopt;
  const std::vector<int64_t> there =
      runtime::list_checkpoints((std::filesystem::path(job.folder) / job.checkpoints).string());
  return there.empty() ? std::nullopt : std::optional(there.back());
}

// What the ranks' flight records tell of attempts, where this host sees their folder.
class RecordsInSight {
 public:
  explicit RecordsInSight(const LaunchJob& job)
      : folder_(job.records.empty() ? "" : (std::filesystem::path(job.folder) / job.records).string()) {
    if (const auto views = read(); !views.empty()) last_ = views.front().start;
  }

  // Of an attempt that `failed` ended.
  void add(const Process& failed, runtime::AttemptEnd& end) {
    const std::vector<runtime::FlightView> views = read();
    if (views.empty() || views.front().start == 0 || views.front().start == last_) return;  // its ranks never met
    last_ = views.front().start;
    const runtime::Diagnosis d = runtime::diagnose(views, {}, runtime::wall_clock(), runtime::RunState::kIsOver);
    runtime::add_place(views, d, end);
    if (d.root && worth_retry(exit_code(end.status)) && d.root->kind != runtime::FateKind::kTold)
      end.status = absl::Status(end.status.code(), cat("root cause: ", d.root_text()));
    end.killed = end.rank == failed.rank && failed.code == 128 + SIGKILL;
    for (const runtime::FlightView& v : views) end.saved = std::max(end.saved.value_or(0), v.training_step);
  }

 private:
  std::vector<runtime::FlightView> read() const {
    if (folder_.empty()) return {};
    auto views = runtime::read_flight_records(folder_);
    return views.ok() ? *std::move(views) : std::vector<runtime::FlightView>();
  }

  const std::string folder_;
  uint64_t last_ = 0;  // the start that has been looked at
};

// The hosts on which ssh can run something now, all asked at once.
std::vector<Host> answering(const std::vector<Host>& hosts, std::vector<std::string> ssh) {
  ssh.insert(ssh.end(), {"", "true"});
  const int nothing = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  std::vector<absl::StatusOr<pid_t>> asked;
  for (const Host& host : hosts) {
    ssh[ssh.size() - 2] = host.name;
    asked.push_back(start_ssh(ssh, nothing));
  }
  ::close(nothing);
  std::vector<Host> there;
  const Clock::time_point end = Clock::now() + kAnswer;
  for (size_t k = 0; k < hosts.size(); ++k) {
    int status = 1;
    if (!asked[k].ok()) continue;
    while (::waitpid(*asked[k], &status, WNOHANG) == 0) {
      if (Clock::now() > end) ::kill(*asked[k], SIGKILL);
      std::this_thread::sleep_for(kPoll);
    }
    if (status == 0) there.push_back(hosts[k]);
  }
  return there;
}

// Asks the hosts now and then, in a thread of its own, whether they have slots for a larger plan than the one that
// runs.
class HostWatch {
 public:
  HostWatch(const LaunchJob& job, const std::vector<Host>& hosts, const std::vector<std::string>& ssh, int ranks) {
    if (ranks >= job.ranks || job.checkpoints.empty()) return;
    thread_ = std::thread([this, &job, &hosts, &ssh, ranks] {
      const auto done = [this] { return done_.load(); };
      while (!more_ && runtime::sleep_unless(done, job.ask_seconds))
        more_ = largest_plan(job, slots_of(answering(hosts, ssh))) > ranks;
    });
  }
  ~HostWatch() {
    done_ = true;
    if (thread_.joinable()) thread_.join();
  }
  bool more() const { return more_; }

 private:
  std::atomic<bool> done_ = false, more_ = false;
  std::thread thread_;
};

}  // namespace

std::string remote_rank_line(const LaunchJob& job, const std::vector<Host>& hosts, int rank, bool again) {
  const auto [host, local_rank] = place_of(hosts, rank);
  std::vector<std::string> words = {"env"};
  for (const auto& [name, value] : {std::pair{"RANK", rank},
                                    {"WORLD_SIZE", job.ranks},
                                    {"LOCAL_RANK", local_rank},
                                    {"LOCAL_WORLD_SIZE", hosts[host].slots},
                                    {"MASTER_PORT", job.port}})
    words.push_back(cat(name, "=", value));
  words.push_back(cat("MASTER_ADDR=", hosts[0].address));
  words.insert(words.end(), job.command.begin(), job.command.end());
  if (again) words.insert(words.end(), job.resume.begin(), job.resume.end());
  const std::string script = cat("cd ", shell_word(job.folder), R"( || exit 2
IFS= read -r PARTITA_JOB_SECRET || exit 129
export PARTITA_JOB_SECRET
exec 3<&0
)",
                                 shell_line(words), R"( </dev/null 3<&- &
rank=$!
{ IFS= read -r grace <&3; kill -TERM $rank; sleep ${grace:-100}; kill -KILL $rank; } >/dev/null 2>&1 &
watch=$!
exec 3<&-
wait $rank
code=$?
kill $watch
exit $code)");
  return cat("exec sh -c ", shell_word(script));
}

absl::Status run_on_hosts(const LaunchJob& job, const std::vector<Host>& hosts, const std::vector<std::string>& ssh,
                          const std::string& secret, const std::atomic<bool>* stop) {
  runtime::Restarts restarts(job.restarts);
  RecordsInSight records(job);
  const auto stopped = [&] { return stop != nullptr && stop->load(); };
  for (bool again = false;; again = true) {
    const Clock::time_point begin = Clock::now();
    runtime::AttemptEnd end;
    std::optional<Process> failed;
    const std::vector<Host> there = again && job.plans.size() > 1 ? answering(hosts, ssh) : hosts;
    LaunchJob now = job;
    now.ranks = largest_plan(job, slots_of(there));
    if (now.ranks == 0) {
      end.status =
          absl::UnavailableError(cat("hosts with slots for ", slots_of(there),
                                     " ranks answer, and the bundle has a plan for ", job.plans.back(), " at least"));
    } else {
      if (now.ranks != job.ranks)
        std::fprintf(stderr, "partita: hosts with slots for %d ranks answer; going on with %d\n", slots_of(there),
                     now.ranks);
      PARTITA_ASSIGN_OR_RETURN(const std::vector<Host> used, hosts_for(there, now.ranks));
      Attempt attempt(now, used);
      PARTITA_RETURN_IF_ERROR(attempt.start(ssh, secret, again));
      const HostWatch watch(job, hosts, ssh, now.ranks);
      failed = attempt.wait([&] { return stopped() || watch.more(); });
      if (!failed) return absl::OkStatus();
      end.status = status_of(*failed, used);
      if (watch.more() && !stopped() && end.status.code() == absl::StatusCode::kCancelled) {
        std::fprintf(stderr, "partita: more hosts answer; the ranks have saved, and go on with more\n");
        continue;
      }
    }
    if (stopped()) return end.status;
    end.saved = newest_checkpoint(job);
    if (failed) records.add(*failed, end);
    end.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    PARTITA_ASSIGN_OR_RETURN(const double seconds, restarts.next(end, seconds_of(Clock::now())));
    std::fprintf(stderr, "partita: %s; restart %d of %d, from the last good checkpoint, in %.0f s\n",
                 std::string(end.status.message()).c_str(), restarts.count(), job.restarts.most, seconds);
    if (!runtime::sleep_unless(stopped, seconds)) return end.status;
  }
}

}  // namespace partita
