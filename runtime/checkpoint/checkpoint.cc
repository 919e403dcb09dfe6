#include "runtime/checkpoint/checkpoint.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <random>
#include <thread>

#include "base/atomic_file.h"
#include "base/box.h"
#include "base/cat.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "base/status.h"
#include "fmt/format.h"
#include "runtime/checkpoint/checkpoint_folder.h"
#include "runtime/checkpoint/checkpoint_reader.h"
#include "runtime/checkpoint/module_files.h"
#include "runtime/checkpoint/tensor_owners.h"
#include "runtime/communicate/exchanges.h"
#include "runtime/communicate/work_together.h"

namespace partita::runtime {
namespace {

namespace fs = std::filesystem;

constexpr auto kLockPatience = std::chrono::seconds(10);  // a run that was told to end may still be doing so

absl::Status already_holds(const std::string& place, int64_t step) {
  return absl::FailedPreconditionError(cat(quote(place, 1000), " already holds checkpoints, up to step ", step,
                                           "; say --resume to go on from there, or choose another folder"));
}

}  // namespace

// Held by the first rank as long as it may write into the folder; the system gives it back when the process ends.
struct Checkpointer::Lock {
  explicit Lock(int fd) : fd(fd) {}
  ~Lock() { ::close(fd); }
  int fd;
};

Checkpointer::Checkpointer(const CheckpointOptions& options, const Executor& executor, Communicator* communicator,
                           FlightRecorder* recorder)
    : options_(options), executor_(executor), communicator_(communicator), recorder_(recorder) {}

Checkpointer::~Checkpointer() = default;

absl::StatusOr<std::unique_ptr<Checkpointer>> Checkpointer::open(const CheckpointOptions& options,
                                                                 const Executor& executor, Communicator* communicator,
                                                                 FlightRecorder* recorder) {
  std::unique_ptr<Checkpointer> c(new Checkpointer(options, executor, communicator, recorder));
  if (!options.folder.empty()) {
    PARTITA_RETURN_IF_ERROR(
        all_ok(communicator, c->is_first() ? c->lock_folder() : absl::OkStatus(), "opening the checkpoint folder"));
    PARTITA_RETURN_IF_ERROR(c->find_out_shared());
    if (!options.to.empty())
      PARTITA_RETURN_IF_ERROR(all_ok(communicator, c->open_archive(), "opening the place that checkpoints go on to"));
    if (options.mirror.every > 0) {
      PARTITA_ASSIGN_OR_RETURN(
          c->mirror_, Mirror::open(options.mirror, options.folder, !options.resume.empty(), communicator, recorder));
    }
  }
  if (!options.folder.empty() || !options.resume.empty() || !options.init.empty() || !options.init_optimizer.empty())
    PARTITA_RETURN_IF_ERROR(c->gather_tensors());
  return c;
}

absl::Status Checkpointer::lock_folder() {
  const std::string& folder = options_.folder;
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return file_error("make the folder", folder, error.value());
  const std::string path = folder + "/.lock";
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0) return file_error("write into the checkpoint folder", folder, errno);
  lock_ = std::make_unique<Lock>(fd);
  const auto give_up = std::chrono::steady_clock::now() + kLockPatience;
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    // File systems without locks: go on without.
    if (errno != EWOULDBLOCK && errno != EINTR) break;
    if (std::chrono::steady_clock::now() > give_up)
      return absl::FailedPreconditionError(cat("another run writes checkpoints into ", quote(folder, 1000)));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  PARTITA_ASSIGN_OR_RETURN(const std::vector<int64_t> there, find_checkpoints(folder));
  if (options_.resume.empty() && !there.empty()) return already_holds(folder, there.back());
  remove_unfinished(folder);
  return absl::OkStatus();
}

// Rank 0 leaves a mark that the others look for.
absl::Status Checkpointer::find_out_shared() {
  const std::string path = options_.folder + "/.shared";
  std::string mark = cat(::getpid(), ".", std::chrono::steady_clock::now().time_since_epoch().count());
  absl::Status made = is_first() ? write_file_atomically(path, mark, Durable::kNo) : absl::OkStatus();
  PARTITA_RETURN_IF_ERROR(all_ok(communicator_, made, "writing into the checkpoint folder"));
  PARTITA_RETURN_IF_ERROR(broadcast_text(communicator_, mark, "checkpoint: mark"));
  auto seen = MappedFile::open(path);
  int64_t apart = seen.ok() && seen->text() == mark ? 0 : 1;
  PARTITA_RETURN_IF_ERROR(all_reduce(communicator_, {&apart, 1}, ReduceOp::kMax, "checkpoint: shared"));
  shared_ = apart == 0;
  std::error_code ignored;
  if (is_first()) fs::remove(path, ignored);
  if (shared_) return absl::OkStatus();
  PARTITA_ASSIGN_OR_RETURN(const bool first_here, is_first_of_folder(options_.folder, mark, *communicator_));
  follows_ = first_here && !is_first();
  return all_ok(communicator_, follows_ ? lock_folder() : absl::OkStatus(), "opening the checkpoint folder");
}

absl::Status Checkpointer::open_archive() {
  std::string writer;
  if (is_first()) {
    std::random_device random;
    std::error_code ignored;
    writer = fmt::format("run {:08x}{:08x} of the folder {}", random(), random(),
                         fs::absolute(options_.folder, ignored).string());
  }
  PARTITA_RETURN_IF_ERROR(broadcast_text(communicator_, writer, "checkpoint: who copies"));
  PARTITA_ASSIGN_OR_RETURN(archive_,
                           CheckpointArchive::open({.folder = options_.folder,
                                                    .place = options_.to,
                                                    .keep = options_.keep,
                                                    .rank = communicator_ == nullptr ? 0 : communicator_->rank(),
                                                    .shared = shared_,
                                                    .writer = std::move(writer)},
                                                   options_.environment));
  if (!is_first() || !options_.resume.empty()) return absl::OkStatus();
  PARTITA_ASSIGN_OR_RETURN(const std::vector<int64_t> there, archive_->list());
  return there.empty() ? absl::OkStatus() : already_holds(options_.to, there.back());
}

absl::Status Checkpointer::gather_tensors() {
  std::vector<TensorBox> boxes;
  for (const ProgramState& s : executor_.program().states) {
    if (is_kept(s)) boxes.push_back({kept_tensor(s), &s.placement});
  }
  PARTITA_ASSIGN_OR_RETURN(TensorOwners owners, agree_on_owners(boxes, executor_.coordinates(), communicator_));
  tensors_ = std::move(owners.tensors);
  size_t next = 0;
  for (const ProgramState& s : executor_.program().states) owned_.push_back(is_kept(s) && owners.owned[next++]);
  return absl::OkStatus();
}

std::vector<HeldState> Checkpointer::held_states() const {
  std::map<std::string_view, size_t> index;
  for (size_t k = 0; k < tensors_.size(); ++k) index[tensors_[k].name] = k;
  std::vector<HeldState> held;
  const std::vector<ProgramState>& states = executor_.program().states;
  for (size_t k = 0; k < states.size(); ++k) {
    if (is_kept(states[k]))
      held.push_back({index.at(states[k].name), &states[k].placement, executor_.memory(states[k].operand), owned_[k]});
  }
  return held;
}

void Checkpointer::mark_good(int64_t steps_taken, const std::string& why) {
  if (!is_first()) return;
  last_good_ = steps_taken;
  why_good_ = why;
  const size_t before = unproved_.size();
  std::erase_if(unproved_, [&](int64_t step) {
    if (step > steps_taken) return false;
    judge(step, CheckpointVerdict::kGood, why);
    return true;
  });
  if (unproved_.size() != before) prune();
}

bool Checkpointer::has_good() const {
  const std::vector<int64_t> there = list_checkpoints(options_.folder);
  return std::any_of(there.begin(), there.end(), [&](int64_t step) {
    return verdict_on(cat(options_.folder, "/", checkpoint_name(step))) == CheckpointVerdict::kGood;
  });
}

void Checkpointer::mark_bad(const std::string& why) {
  for (int64_t step : unproved_) judge(step, CheckpointVerdict::kBad, why);
  unproved_.clear();
}

void Checkpointer::judge(int64_t step, CheckpointVerdict verdict, const std::string& why) {
  write_verdict(cat(options_.folder, "/", checkpoint_name(step)), verdict, why);
  if (archive_ != nullptr) archive_->judge(step);
}

void Checkpointer::prune() const {
  prune_checkpoints(options_.folder, options_.keep, options_.keep_best,
                    archive_ != nullptr ? archive_->in_hand() : std::nullopt);
}

absl::Status Checkpointer::follow_first() const {
  std::string kept = is_first() && !shared_ ? describe_folder(options_.folder) : "";
  if (!shared_) PARTITA_RETURN_IF_ERROR(broadcast_text(communicator_, kept, "checkpoint: what is kept"));
  if (follows_) follow_folder(options_.folder, kept, archive_ != nullptr ? archive_->in_hand() : std::nullopt);
  return absl::OkStatus();
}

// Every rank its part of the same checkpoints.
void Checkpointer::archive(int64_t step) {
  if (archives_) return archive_->begin(step);
  if (told_behind_ || !is_first()) return;
  told_behind_ = true;
  std::fprintf(
      stderr,
      "note: %s takes longer for a checkpoint than the %lld steps from one to the next; that of step %lld does "
      "not go there, nor will each later one\n",
      options_.to.c_str(), static_cast<long long>(options_.every), static_cast<long long>(step));
}

absl::Status Checkpointer::leave() {
  if (mirror_ != nullptr) mirror_->forget();
  PARTITA_RETURN_IF_ERROR(follow_first());
  if (archive_ == nullptr) return absl::OkStatus();
  return work_together(communicator_, "copying the last checkpoint", recorder_, [this] { return finish_archive(); });
}

absl::Status Checkpointer::finish_archive() {
  absl::Status status = archive_->finish(recorder_);
  if (status.ok() && last_.ok() && last_saved_ >= 0 && archive_->copied() != last_saved_) {
    if (is_first())
      std::fprintf(stderr, "note: the checkpoint of step %lld goes to %s\n", static_cast<long long>(last_saved_),
                   options_.to.c_str());
    archive_->begin(last_saved_);
    status = archive_->finish(recorder_);
  }
  return status;
}

absl::Status Checkpointer::mirror(CheckpointManifest head) {
  head.tensors = tensors_;
  return mirror_->save(std::move(head), held_states(), executor_.coordinates());
}

absl::StatusOr<std::string> Checkpointer::mirror_told() const {
  if (mirror_ == nullptr) return "";
  int64_t bytes = 0;
  for (const HeldState& s : held_states()) bytes += s.owned ? static_cast<int64_t>(s.memory.size()) : 0;
  return mirror_->told(bytes);
}

Checkpointer::Progress Checkpointer::progress() const {
  Progress p{.archiving = archive_ != nullptr && !archive_->idle(),
             .mirroring = mirror_ != nullptr && mirror_->busy(),
             .mirror_failed = mirror_ != nullptr && mirror_->failed()};
  if (writer_ == nullptr) return p;
  p.writing = !writer_->written();
  p.failed = p.writing == 0 && !committed_ && !writer_->status().ok();
  return p;
}

absl::Status Checkpointer::settle(const Progress& all) {
  if (mirror_ != nullptr) PARTITA_RETURN_IF_ERROR(mirror_->settle(all.mirroring != 0, all.mirror_failed != 0));
  return settle_writer(all);
}

absl::Status Checkpointer::settle_writer(const Progress& all) {
  if (writer_ == nullptr || all.writing != 0) return absl::OkStatus();
  if (committed_) {
    last_ = writer_->status();
    if (!last_.ok()) warn(last_, writer_->manifest().step);
    if (last_.ok() && is_first()) {
      cost_ = {0, writer_->seconds()};
      for (const CheckpointTensor& t : writer_->manifest().tensors)
        cost_->bytes += *element_count(t.shape) * dtype_size(t.dtype);
      unproved_.push_back(writer_->manifest().step);
      if (last_good_ >= unproved_.back()) mark_good(last_good_, why_good_);
      prune();
    }
    if (last_.ok() && archive_ != nullptr) archive(writer_->manifest().step);
    writer_.reset();
    committed_ = false;
    return absl::OkStatus();
  }
  if (all.failed != 0) {
    last_ = all_ok(communicator_, writer_->status(), "writing its part of the checkpoint");
    writer_->discard();
    const int64_t step = std::exchange(writer_, nullptr)->manifest().step;
    PARTITA_RETURN_IF_ERROR(lost());
    if (is_first()) warn(last_, step);
    return absl::OkStatus();
  }
  PARTITA_RETURN_IF_ERROR(writer_->commit());
  committed_ = true;
  archives_ = all.archiving == 0;
  return absl::OkStatus();
}

absl::Status Checkpointer::lost() const {
  return communicator_ == nullptr ? absl::OkStatus() : communicator_->failure();
}

absl::Status Checkpointer::finish() {
  while (writer_ != nullptr) {
    writer_->written_within(kTurn);
    const Progress mine = progress();
    int64_t all[] = {mine.writing, mine.failed, mine.archiving};
    PARTITA_RETURN_IF_ERROR(all_reduce(communicator_, all, ReduceOp::kMax, "checkpoint: what the ranks say"));
    if (mine.writing == 0 && recorder_ != nullptr) recorder_->progress();
    PARTITA_RETURN_IF_ERROR(settle_writer({all[0], all[1], all[2]}));
  }
  const absl::Status followed = follow_first();
  const absl::Status written = all_ok(communicator_, last_, "writing the checkpoint");
  return written.ok() ? followed : written;
}

absl::Status Checkpointer::save(CheckpointManifest head) {
  finish().IgnoreError();
  PARTITA_RETURN_IF_ERROR(lost());
  head.shared = shared_;
  head.ranks = communicator_ == nullptr ? 1 : communicator_->size();
  head.tensors = tensors_;
  const int64_t step = head.step;
  auto writer = std::make_unique<CheckpointWriter>(options_.folder, shared_, communicator_, copy_, recorder_);
  last_ = writer->begin(std::move(head), held_states(), executor_.coordinates());
  if (!last_.ok()) {
    PARTITA_RETURN_IF_ERROR(lost());
    if (is_first()) warn(last_, step);
    return absl::OkStatus();
  }
  writer_ = std::move(writer);
  last_saved_ = step;
  return absl::OkStatus();
}

void Checkpointer::warn(const absl::Status& why, int64_t step) {
  const std::vector<int64_t> there = list_checkpoints(options_.folder);
  std::fprintf(stderr, "warning: the checkpoint of step %lld was not written: %s; %s\n", static_cast<long long>(step),
               std::string(why.message()).c_str(),
               there.empty() ? "there is none before it" : cat("the one of step ", there.back(), " is kept").c_str());
}

std::string Checkpointer::Cost::told(double waited, double interval, double step, double little) const {
  const double size = static_cast<double>(bytes) / 1e9;
  return fmt::format(
      "{:.3g} GB of checkpoint take {:.3g} s to write ({:.3g} GB/s), {:.3g} s longer than a step takes, and training "
      "waits for it: {:.0f} % of the time; with --every {:.0f} it would be {:.0f} %",
      size, seconds, size / seconds, waited, 100 * waited / (interval + waited), std::ceil(waited / step / little),
      100 * little);
}

}  // namespace partita::runtime
