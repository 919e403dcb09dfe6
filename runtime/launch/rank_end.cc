#include "runtime/launch/rank_end.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <mutex>
#include <optional>

#include "base/atomic_file.h"
#include "base/cat.h"
#include "base/exit_code.h"
#include "base/mapped_file.h"
#include "base/status.h"
#include "nlohmann/json.hpp"
#include "runtime/communicate/exchanges.h"
#include "runtime/communicate/lost_ranks.h"

namespace partita::runtime {
namespace {

constexpr int64_t kStopped = 2'000'000'000;  // nanoseconds without a heartbeat

// As torch.distributed.elastic.multiprocessing.errors writes it and its agent reads it.
void write_error_file(const std::string& path, const std::string& message) {
  if (path.empty()) return;
  const nlohmann::json error = {
      {"message",
       {{"message", message},
        {"extraInfo", {{"py_callstack", ""}, {"timestamp", cat(wall_clock() / 1'000'000'000)}}}}}};
  write_file_atomically(path, error.dump(2, ' ', false, nlohmann::json::error_handler_t::replace), Durable::kNo)
      .IgnoreError();
}

int tell_end_once(const absl::Status& status, const LaunchEnvironment& launch, RankWatch& watch, std::FILE* console) {
  record_end(watch.recorder(), status);
  if (status.ok()) return exit_code(status);
  const std::string message(status.message()), who = launch.world_size > 1 ? cat("rank ", launch.rank, ": ") : "";
  if (!is_of_another(status) || launch.world_size == 1) {
    const bool lost = worth_retry(exit_code(status)) && !absl::IsCancelled(status);
    const std::string text = lost ? cat(who, message, "; ", watch.where()) : cat(who, message);
    say(console, text);
    write_error_file(launch.error_file, text);
    return exit_code(status);
  }
  std::string text = cat(who, "followed: ", message, "; ", watch.where());
  write_error_file(launch.error_file, text);
  if (launch.record >= 0) return exit_code(status);
  if (watch.tells_root()) {
    const Diagnosis d = watch.diagnose();
    const std::optional<LostRanks> lost = lost_ranks(status);
    // One that hangs here may wait for a rank of another host, whose end was seen.
    const bool ended = lost && lost->ended && (!d.root || d.root->kind == FateKind::kHangs);
    const bool seen = d.root || !d.awaited.empty();
    append(text, "\npartita: root cause: ", ended ? lost->text : seen ? d.root_text() : lost ? lost->text : message);
  }
  say(console, text);
  return end_code(status);  // a launcher may look at this one alone
}

}  // namespace

void say(std::FILE* console, const std::string& text) {
  if (text.empty()) return;
  for (std::FILE* to : {console, stderr}) {
    std::fprintf(to, "partita: %s\n", text.c_str());
    std::fflush(to);
    if (console == stderr) break;
  }
}

void record_end(FlightRecorder& recorder, const absl::Status& status) {
  const FlightEnd how = status.ok()                 ? FlightEnd::kClean
                        : absl::IsCancelled(status) ? FlightEnd::kTold
                        : is_of_another(status)     ? FlightEnd::kFollowed
                                                    : FlightEnd::kFailed;
  recorder.end(how, how == FlightEnd::kTold ? SIGTERM : exit_code(status), std::string(status.message()));
}

void record_stop(RankWatch& watch) {
  FlightRecorder& recorder = watch.recorder();
  const int64_t quiet = flight_clock() - recorder.header().heartbeat;
  if (quiet < kStopped) return;
  const Diagnosis d = watch.diagnose();
  const bool gave_up = std::any_of(d.others.begin(), d.others.end(), [&](const RankFate& f) {
    return f.kind == FateKind::kFollowed && f.rank != recorder.header().rank;
  });
  if (gave_up)
    recorder.end(FlightEnd::kFailed, static_cast<int>(ExitCode::kLost),
                 cat("was stopped for ", quiet / 1'000'000'000, " s, and the others gave up"));
}

int tell_end(const absl::Status& status, const LaunchEnvironment& launch, RankWatch& watch, std::FILE* console) {
  // The rank's thread, its watch and its signals may all come here; the others wait until the first has spoken.
  static std::mutex mutex;
  static std::optional<int> told;
  std::lock_guard lock(mutex);
  if (!told) told = tell_end_once(status, launch, watch, console);
  return *told;
}
absl::Status with_root_cause(const absl::Status& status, const RankWatch& watch) {
  if (!worth_retry(exit_code(status)) || absl::IsCancelled(status)) return status;
  const Diagnosis d = watch.diagnose();
  if (!d.root) return status;
  for (const RankFate& f : d.others) std::fprintf(stderr, "partita: %s\n", d.other_text(f).c_str());
  return absl::Status(status.code(), cat("root cause: ", d.root_text()));
}

void end_process(const FlightRecorder& recorder, const absl::Status& why) {
  const auto reader = FlightReader::map(recorder.descriptor());
  const std::string where = reader.ok() ? cat("; ", (*reader)->view().where()) : "";
  say(stderr,
      cat("rank ", recorder.header().rank, ": ", why.message(), where, "; it does not come back, so the process ends"));
  ::_exit(exit_code(why));
}

absl::StatusOr<std::FILE*> log_output(const std::string& folder, int rank) {
  std::error_code ec;
  std::filesystem::create_directories(folder, ec);
  if (ec) return file_error("create the folder", folder, ec.value());
  const std::string path = cat(folder, "/rank-", rank, ".log");
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return file_error("write", path, errno);
  std::FILE* console = ::fdopen(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0), "w");
  if (console == nullptr) return file_error("keep", "standard error", errno);
  for (int standard : {STDOUT_FILENO, STDERR_FILENO}) ::dup2(fd, standard);
  ::close(fd);
  return console;
}

}  // namespace partita::runtime
