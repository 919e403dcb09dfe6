#include "runtime/checkpoint/checkpoint_archive.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <map>
#include <utility>

#include "base/cat.h"
#include "base/checksum.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/checkpoint/checkpoint_reader.h"

namespace partita::runtime {
namespace {

namespace fs = std::filesystem;

constexpr int kLastTries = 3;  // when a run waits for its end
constexpr double kLongestPause = 60, kPollOthers = 0.1;
constexpr auto kPatience = std::chrono::minutes(2);  // for other ranks' parts
constexpr auto kLook = std::chrono::milliseconds(100);
constexpr const char *kCopied = ".copied", *kWriter = "writer";

std::string name_of(CheckpointVerdict verdict) { return verdict == CheckpointVerdict::kGood ? "good" : "bad"; }

// Of a checkpoint. Whoever may write into the place may put anything there, "../" in its name, too.
bool is_part(const std::string& file) {
  const bool boxes = file.starts_with("boxes-") && file.ends_with(".safetensors") && file.find('/') == file.npos;
  return boxes || file == kCheckpointManifest || file == kCheckpointStates ||
         file == name_of(CheckpointVerdict::kGood) || file == name_of(CheckpointVerdict::kBad);
}

struct Archived {
  bool complete = false, good = false, bad = false;
  std::vector<ObjectInfo> objects;
};

// What a list of objects says of each step.
std::map<int64_t, Archived> by_step(const std::vector<ObjectInfo>& objects) {
  std::map<int64_t, Archived> steps;
  for (const ObjectInfo& o : objects) {
    const size_t slash = o.name.find('/');
    const std::optional<int64_t> step = checkpoint_step(o.name.substr(0, slash));
    if (slash == o.name.npos || !step) continue;
    Archived& a = steps[*step];
    const std::string file = o.name.substr(slash + 1);
    a.complete |= file == kCheckpointManifest;
    a.good |= file == name_of(CheckpointVerdict::kGood);
    a.bad |= file == name_of(CheckpointVerdict::kBad);
    a.objects.push_back(o);
  }
  return steps;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CheckpointArchive>> CheckpointArchive::open(const Options& options,
                                                                           const EnvironmentMap& environment) {
  std::error_code error;
  if (fs::equivalent(options.folder, options.place, error))
    return absl::InvalidArgumentError(cat("--checkpoint ", quote(options.folder, 1000), " and --checkpoint-to ",
                                          quote(options.place, 1000), " are the same folder; choose two"));
  std::unique_ptr<CheckpointArchive> archive(new CheckpointArchive(options));
  PARTITA_ASSIGN_OR_RETURN(archive->store_, open_object_store(options.place, environment, &archive->transfers_));
  return archive;
}

CheckpointArchive::~CheckpointArchive() {
  {
    std::lock_guard lock(mutex_);
    transfers_.give_up = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

absl::StatusOr<std::vector<int64_t>> CheckpointArchive::list() {
  PARTITA_ASSIGN_OR_RETURN(const std::vector<ObjectInfo> objects, store_->list("step-"));
  std::vector<int64_t> steps;
  for (const auto& [step, a] : by_step(objects)) {
    if (a.complete && !a.bad) steps.push_back(step);
  }
  std::lock_guard lock(mutex_);
  if (!steps.empty()) copied_ = std::max(copied_, steps.back());
  return steps;
}

absl::StatusOr<bool> CheckpointArchive::has(int64_t step) {
  PARTITA_ASSIGN_OR_RETURN(const std::vector<ObjectInfo> objects, store_->list(checkpoint_name(step) + "/"));
  const auto steps = by_step(objects);
  return !steps.empty() && steps.begin()->second.complete;
}

absl::Status CheckpointArchive::fetch(int64_t step, bool anew) {
  const std::string to = cat(options_.folder, "/", checkpoint_name(step)), lock = options_.folder + "/.fetch";
  const int fd = ::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return file_error("write into the checkpoint folder", options_.folder, errno);
  while (::flock(fd, LOCK_EX) != 0 && errno == EINTR) {
  }
  std::error_code ignored;
  const absl::Status status =
      !anew && fs::exists(cat(to, "/", kCheckpointManifest), ignored) ? absl::OkStatus() : fetch_files(step);
  ::close(fd);
  return status;
}

absl::Status CheckpointArchive::fetch_files(int64_t step) {
  const std::string name = checkpoint_name(step), to = cat(options_.folder, "/", name),
                    from = cat(options_.folder, "/.", name, ".fetch.partial");
  PARTITA_ASSIGN_OR_RETURN(const std::vector<ObjectInfo> objects, store_->list(name + "/"));
  std::error_code error;
  fs::remove_all(from, error);
  fs::create_directories(from, error);
  if (error) return file_error("make the folder", from, error.value());
  for (const ObjectInfo& o : objects) {
    const std::string file = o.name.substr(name.size() + 1);
    if (is_part(file)) PARTITA_RETURN_IF_ERROR(fetch_object(*store_, o, cat(from, "/", file)));
  }
  fs::remove_all(to, error);  // what is there has no manifest, or is damaged
  fs::rename(from, to, error);
  if (error) return file_error("rename the fetched checkpoint to", to, error.value());
  return absl::OkStatus();
}

bool CheckpointArchive::idle() const {
  std::lock_guard lock(mutex_);
  return std::all_of(jobs_.begin(), jobs_.end(), [](const Job& j) { return j.verdict; });
}

std::optional<int64_t> CheckpointArchive::in_hand() const {
  std::lock_guard lock(mutex_);
  for (const Job& j : jobs_) {
    if (!j.verdict) return j.step;
  }
  return std::nullopt;
}

int64_t CheckpointArchive::copied() const {
  std::lock_guard lock(mutex_);
  return copied_;
}

void CheckpointArchive::begin(int64_t step) {
  if (!options_.shared || options_.rank == 0) push({step, false});
}

void CheckpointArchive::push(const Job& job) {
  std::lock_guard lock(mutex_);
  jobs_.push_back(job);
  changed_.notify_all();
  if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
}

void CheckpointArchive::judge(int64_t step) { push({step, true}); }

absl::Status CheckpointArchive::finish(FlightRecorder* recorder) {
  std::unique_lock lock(mutex_);
  last_ = true;
  failed_ = 0;
  changed_.notify_all();
  int64_t moves = -1;
  do {
    if (recorder == nullptr) continue;
    if (std::exchange(moves, transfers_.moves.load()) != transfers_.moves) recorder->progress();
    recorder->at(under_way());
  } while (!changed_.wait_for(lock, kLook, [&] { return jobs_.empty() || failed_ >= kLastTries; }));
  if (recorder != nullptr) recorder->at("");
  last_ = false;
  return jobs_.empty() ? absl::OkStatus() : status_;
}

std::string CheckpointArchive::under_way() const {
  if (jobs_.empty()) return "";
  const std::string name = checkpoint_name(jobs_.front().step);
  return cat("copying ", quote(object_), " of ", name, " to ", quote(options_.place, 1000),
             "; the checkpoint is not whole there, it is in ", quote(cat(options_.folder, "/", name), 1000));
}

bool CheckpointArchive::pause(double seconds) {
  std::unique_lock lock(mutex_);
  const bool waiting = last_;
  changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                    [&] { return transfers_.give_up.load() || (last_ && !waiting); });
  return !transfers_.give_up;
}

void CheckpointArchive::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return transfers_.give_up.load() || !jobs_.empty(); });
    if (transfers_.give_up) return;
    const Job job = jobs_.front();
    lock.unlock();
    const absl::Status status = run(job);
    lock.lock();
    if (transfers_.give_up) return;
    status_ = status;
    failed_ = status.ok() ? 0 : failed_ + 1;
    const int tries = failed_;
    if (status.ok()) {
      jobs_.pop_front();
      if (!job.verdict) copied_ = job.step;
      changed_.notify_all();
      continue;
    }
    changed_.notify_all();
    lock.unlock();
    const double seconds = std::min(kLongestPause, static_cast<double>(1 << std::min(tries - 1, 6)));
    std::fprintf(stderr, "warning: the checkpoint of step %lld is not in %s yet: %s; trying again in %g s\n",
                 static_cast<long long>(job.step), options_.place.c_str(), std::string(status.message()).c_str(),
                 seconds);
    if (!pause(seconds)) return;
    lock.lock();
  }
}

// Two runs that copied into one place would remove each other's checkpoints, and take them up for their own.
absl::Status CheckpointArchive::claim() {
  {
    const std::lock_guard lock(mutex_);
    object_ = kWriter;
  }
  PARTITA_ASSIGN_OR_RETURN(const std::vector<ObjectInfo> there, store_->list(kWriter));
  if (!claimed_ || there.empty()) {
    PARTITA_RETURN_IF_ERROR(store_->put(kWriter, as_byte_span(options_.writer)));
    claimed_ = true;
    return absl::OkStatus();
  }
  std::string found(static_cast<size_t>(there[0].bytes), '\0');
  PARTITA_RETURN_IF_ERROR(store_->read(there[0].name, 0, {reinterpret_cast<std::byte*>(found.data()), found.size()}));
  if (found == options_.writer) return absl::OkStatus();
  return absl::FailedPreconditionError(cat("a run that began later copies its checkpoints there, ", quote(found, 1000),
                                           "; give each a --checkpoint-to of its own"));
}

absl::Status CheckpointArchive::run(const Job& job) {
  PARTITA_RETURN_IF_ERROR(claim());
  if (job.verdict) {
    // Of one that did not go there there is nothing to judge.
    const std::string manifest = cat(checkpoint_name(job.step), "/", kCheckpointManifest);
    PARTITA_ASSIGN_OR_RETURN(const std::vector<ObjectInfo> there, store_->list(manifest));
    return there.empty() ? absl::OkStatus() : copy_verdict(job.step);
  }
  PARTITA_RETURN_IF_ERROR(copy(job.step));
  return options_.rank == 0 ? prune() : absl::OkStatus();
}

absl::Status CheckpointArchive::copy_file(int64_t step, const std::string& name) {
  PARTITA_ASSIGN_OR_RETURN(const MappedFile file,
                           MappedFile::open(cat(options_.folder, "/", checkpoint_name(step), "/", name)));
  {
    const std::lock_guard lock(mutex_);
    object_ = name;
  }
  return store_->put(cat(checkpoint_name(step), "/", name), file.bytes());
}

absl::Status CheckpointArchive::copy(int64_t step) {
  const std::string name = checkpoint_name(step);
  if (options_.shared) {
    PARTITA_RETURN_IF_ERROR(store_->remove(cat(name, "/", kCheckpointManifest)));  // of an earlier run
    PARTITA_RETURN_IF_ERROR(copy_file(step, kCheckpointStates));
  } else {
    // Every rank has the same manifest; its checksum tells this checkpoint from another of the same step.
    PARTITA_ASSIGN_OR_RETURN(const MappedFile manifest,
                             MappedFile::open(cat(options_.folder, "/", name, "/", kCheckpointManifest)));
    const std::string mark = sha256_hex(manifest.bytes());
    if (options_.rank == 0) PARTITA_RETURN_IF_ERROR(store_->remove(cat(name, "/", kCheckpointManifest)));
    PARTITA_RETURN_IF_ERROR(copy_file(step, box_file(options_.rank)));
    PARTITA_RETURN_IF_ERROR(store_->put(cat(name, "/", box_file(options_.rank), kCopied), as_byte_span(mark)));
    if (options_.rank != 0) return absl::OkStatus();
    PARTITA_RETURN_IF_ERROR(wait_for_others(step, mark));
  }
  PARTITA_RETURN_IF_ERROR(copy_verdict(step));
  return copy_file(step, kCheckpointManifest);
}

absl::Status CheckpointArchive::wait_for_others(int64_t step, const std::string& mark) {
  const std::string name = checkpoint_name(step);
  PARTITA_ASSIGN_OR_RETURN(const CheckpointManifest manifest, read_manifest(cat(options_.folder, "/", name)));
  const auto give_up = std::chrono::steady_clock::now() + kPatience;
  for (int64_t rank = 1; rank < manifest.ranks;) {
    std::string found(mark.size(), '\0');
    const absl::Status status = store_->read(cat(name, "/", box_file(rank), kCopied), 0,
                                             {reinterpret_cast<std::byte*>(found.data()), found.size()});
    if (!status.ok() && !absl::IsNotFound(status)) return status;
    moved(&transfers_);  // the place answers; another rank says itself when it hangs
    if (status.ok() && found == mark) {
      ++rank;
    } else if (std::chrono::steady_clock::now() > give_up) {
      return absl::UnavailableError(cat("rank ", rank, " has not copied its part"));
    } else if (!pause(kPollOthers)) {
      return absl::CancelledError("told to give up");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckpointArchive::copy_verdict(int64_t step) {
  const CheckpointVerdict verdict = verdict_on(cat(options_.folder, "/", checkpoint_name(step)));
  if (verdict == CheckpointVerdict::kNone) return absl::OkStatus();
  return copy_file(step, name_of(verdict));
}

// As in the folder: the newest, and the newest good one; and what the folder still has, the best ones among them.
absl::Status CheckpointArchive::prune() {
  if (options_.keep <= 0) return absl::OkStatus();
  PARTITA_ASSIGN_OR_RETURN(const std::vector<ObjectInfo> objects, store_->list("step-"));
  const std::map<int64_t, Archived> steps = by_step(objects);
  const std::vector<int64_t> here = list_checkpoints(options_.folder);
  int newer = 0;
  bool has_good = false;
  for (auto at = steps.rbegin(); at != steps.rend(); ++at) {
    const auto& [step, a] = *at;
    const bool counts = a.complete && !a.bad;
    const bool kept = (counts && newer < options_.keep) || (counts && a.good && !has_good) ||
                      std::binary_search(here.begin(), here.end(), step) || (newer == 0 && !a.bad);
    newer += counts;
    has_good |= counts && a.good;
    if (kept) continue;
    PARTITA_RETURN_IF_ERROR(store_->remove(cat(checkpoint_name(step), "/", kCheckpointManifest)));
    for (const ObjectInfo& o : a.objects) PARTITA_RETURN_IF_ERROR(store_->remove(o.name));
  }
  return absl::OkStatus();
}

}  // namespace partita::runtime
