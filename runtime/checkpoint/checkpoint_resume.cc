// What a run goes on from: checkpoints of the folder, of its slower place, of other hosts' memory.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/checkpoint_reader.h"
#include "runtime/checkpoint/module_files.h"
#include "runtime/communicate/exchanges.h"

namespace partita::runtime {
namespace {

namespace fs = std::filesystem;

int64_t newest_step(const std::string& path) {
  return checkpoint_step(fs::path(path).filename().string()).value_or(-1);
}

}  // namespace

absl::Status Checkpointer::bring(const std::string& path) {
  std::error_code ignored;
  if (archive_ == nullptr || fs::exists(cat(path, "/", kCheckpointManifest), ignored)) return absl::OkStatus();
  const std::optional<int64_t> step = step_of_folder(path);
  if (!step || (shared_ && !is_first())) return absl::OkStatus();
  std::fprintf(stderr, "note: fetching the checkpoint of step %lld from %s\n", static_cast<long long>(*step),
               options_.to.c_str());
  return archive_->fetch(*step);
}

std::optional<int64_t> Checkpointer::step_of_folder(const std::string& path) const {
  if (options_.folder.empty() || !path.starts_with(options_.folder + "/")) return std::nullopt;
  return checkpoint_step(fs::path(path).filename().string());
}

absl::StatusOr<bool> Checkpointer::bring_anew(const std::string& path) {
  const std::optional<int64_t> step = step_of_folder(path);
  if (archive_ == nullptr || !step) return false;
  absl::StatusOr<bool> there = false;
  if (is_first()) there = archive_->has(*step);
  PARTITA_RETURN_IF_ERROR(all_ok(communicator_, there.status(), "looking for the checkpoint"));
  int64_t found = *there;
  PARTITA_RETURN_IF_ERROR(all_reduce(communicator_, {&found, 1}, ReduceOp::kMax, "checkpoint: another copy"));
  if (found == 0) return false;
  absl::Status fetched;
  if (is_first() || follows_) {
    std::fprintf(stderr, "note: fetching the checkpoint of step %lld from %s in the place of the damaged one\n",
                 static_cast<long long>(*step), options_.to.c_str());
    fetched = archive_->fetch(*step, /*anew=*/true);
  }
  PARTITA_RETURN_IF_ERROR(all_ok(communicator_, fetched, "fetching the checkpoint"));
  return true;
}

absl::StatusOr<std::vector<std::string>> Checkpointer::candidates() const {
  std::vector<std::string> paths;
  if (options_.resume.empty()) return paths;
  std::vector<int64_t> there;
  std::string passed;
  PARTITA_ASSIGN_OR_RETURN(const std::vector<int64_t> here, find_checkpoints(options_.folder));
  for (int64_t step : here) {
    std::string why;
    if (verdict_on(cat(options_.folder, "/", checkpoint_name(step)), &why) != CheckpointVerdict::kBad)
      there.push_back(step);
    else
      passed = cat(quote(cat(options_.folder, "/", checkpoint_name(step)), 1000), " is passed over: ", why);
  }
  if (archive_ != nullptr) {
    PARTITA_ASSIGN_OR_RETURN(const std::vector<int64_t> archived, archive_->list());
    for (int64_t step : archived) {
      if (verdict_on(cat(options_.folder, "/", checkpoint_name(step))) != CheckpointVerdict::kBad)
        there.push_back(step);
    }
    std::sort(there.begin(), there.end());
    there.erase(std::unique(there.begin(), there.end()), there.end());
  }
  if (options_.resume == "auto") {
    if (!passed.empty()) std::fprintf(stderr, "note: %s\n", passed.c_str());
    if (!passed.empty() && there.empty())
      return absl::FailedPreconditionError(
          cat("no checkpoint in ", quote(options_.folder, 1000), " is good; start anew in another folder"));
    for (size_t k = there.size(); k-- > 0;) paths.push_back(cat(options_.folder, "/", checkpoint_name(there[k])));
    return paths;
  }
  PARTITA_ASSIGN_OR_RETURN(std::string path, find_checkpoint(options_.resume));
  PARTITA_ASSIGN_OR_RETURN(CheckpointManifest manifest, read_manifest(path));
  if (!there.empty() && there.back() > manifest.step) {
    return absl::FailedPreconditionError(cat(quote(options_.folder, 1000), " holds newer checkpoints (step ",
                                             there.back(), ") than the one to go on from (step ", manifest.step,
                                             "); choose another --checkpoint folder, or remove them"));
  }
  paths.push_back(std::move(path));
  return paths;
}

absl::Status Checkpointer::load(const std::string& folder, bool parameters_only, CheckpointManifest& manifest) {
  auto reader = CheckpointReader::open(folder);
  // A rank whose files are damaged says so to all.
  PARTITA_RETURN_IF_ERROR(all_ok(communicator_, reader.status(), "opening the checkpoint"));
  PARTITA_RETURN_IF_ERROR(load_states(executor_.program(), executor_.coordinates(), owned_, *reader, parameters_only,
                                      communicator_, [this](const Operand& o) { return executor_.memory(o); }));
  manifest = reader->manifest();
  return absl::OkStatus();
}

absl::StatusOr<bool> Checkpointer::is_damaged(const absl::Status& loaded) const {
  if (loaded.ok()) return false;
  // Of the ranks that found it damaged, or that lack what others have, the first says so.
  const int64_t rank = communicator_ == nullptr ? 0 : communicator_->rank();
  const bool found = (absl::IsDataLoss(loaded) || absl::IsNotFound(loaded)) && !is_of_another(loaded);
  const int64_t found_by = found ? INT64_MAX - rank : 0;
  int64_t first = found_by;
  PARTITA_RETURN_IF_ERROR(all_reduce(communicator_, {&first, 1}, ReduceOp::kMax, "checkpoint: damaged"));
  if (first != 0 && found_by == first) std::fprintf(stderr, "warning: %s\n", std::string(loaded.message()).c_str());
  return first != 0;
}

absl::StatusOr<std::optional<CheckpointManifest>> Checkpointer::load_first_of(std::vector<std::string> paths,
                                                                              bool pass_damaged) {
  CheckpointManifest manifest;
  absl::Status last;
  for (size_t k = 0;; ++k) {
    std::string path = k < paths.size() ? paths[k] : "";
    if (step_of_folder(path)) path = fs::path(path).filename().string();
    PARTITA_RETURN_IF_ERROR(broadcast_text(communicator_, path, "checkpoint: path"));
    if (path.empty()) break;
    // Of the folder, each rank's own.
    if (checkpoint_step(path) && !options_.folder.empty()) path = cat(options_.folder, "/", path);
    last = all_ok(communicator_, bring(path), "fetching the checkpoint");
    if (last.ok()) last = load(path, false, manifest);
    if (!last.ok() && !pass_damaged) return last;
    PARTITA_ASSIGN_OR_RETURN(bool damaged, is_damaged(last));
    // Before an older one, the same one of the slower place.
    if (damaged) {
      PARTITA_ASSIGN_OR_RETURN(const bool anew, bring_anew(path));
      if (anew) {
        last = load(path, false, manifest);
        PARTITA_ASSIGN_OR_RETURN(damaged, is_damaged(last));
      }
    }
    if (last.ok()) {
      const bool own = path.starts_with(options_.folder + "/") && !options_.folder.empty();
      last_saved_ = own ? manifest.step : -1;
      unproved_.clear();
      if (own && is_first() && verdict_on(path) == CheckpointVerdict::kNone) unproved_.push_back(manifest.step);
      return manifest;
    }
    if (!damaged) return last;
  }
  if (!last.ok()) return last;
  return std::optional<CheckpointManifest>();
}

absl::StatusOr<std::optional<CheckpointManifest>> Checkpointer::resume() {
  std::vector<std::string> paths;
  absl::Status found;
  if (is_first()) {
    auto listed = candidates();
    found = listed.status();
    if (listed.ok()) paths = *std::move(listed);
  }
  PARTITA_RETURN_IF_ERROR(all_ok(communicator_, found, "finding the checkpoint"));
  if (mirror_ != nullptr && options_.resume == "auto") {
    int64_t newest = is_first() && !paths.empty() ? newest_step(paths[0]) : -1;
    PARTITA_RETURN_IF_ERROR(all_reduce(communicator_, {&newest, 1}, ReduceOp::kMax, "checkpoint: the newest"));
    PARTITA_ASSIGN_OR_RETURN(std::string mirrored, mirror_->gather(newest));
    if (!mirrored.empty() && is_first()) paths.insert(paths.begin(), std::move(mirrored));
  }
  PARTITA_ASSIGN_OR_RETURN(auto manifest, load_first_of(std::move(paths), options_.resume == "auto"));
  if (!shared_ && options_.resume == "auto") PARTITA_RETURN_IF_ERROR(look_elsewhere(manifest ? manifest->step : -1));
  if (!manifest) PARTITA_RETURN_IF_ERROR(start_from());
  return manifest;
}

absl::Status Checkpointer::look_elsewhere(int64_t step) const {
  const int64_t rank = communicator_->rank(), ranks = communicator_->size();
  int64_t newest = -1;  // a step and the rank that has it, the lowest first
  for (const int64_t there : list_checkpoints(options_.folder)) {
    if (there > step && verdict_on(cat(options_.folder, "/", checkpoint_name(there))) != CheckpointVerdict::kBad)
      newest = there * ranks + (ranks - 1 - rank);
  }
  PARTITA_RETURN_IF_ERROR(all_reduce(communicator_, {&newest, 1}, ReduceOp::kMax, "checkpoint: newer ones elsewhere"));
  if (newest < 0) return absl::OkStatus();
  const std::string seen = cat("the folder ", quote(options_.folder, 1000), " of rank ", ranks - 1 - newest % ranks,
                               " holds a checkpoint of step ", newest / ranks);
  if (step < 0)
    return absl::FailedPreconditionError(
        cat(seen,
            ", but of none do all ranks have their part: the run would begin anew; copy the folder to the hosts "
            "that lack it, or choose another to begin anew"));
  if (is_first())
    std::fprintf(stderr, "warning: %s, which other ranks lack; the run goes on from step %lld\n", seen.c_str(),
                 static_cast<long long>(step));
  return absl::OkStatus();
}

absl::StatusOr<CheckpointManifest> Checkpointer::roll_back(const std::string& why) {
  finish().IgnoreError();
  PARTITA_RETURN_IF_ERROR(lost());
  if (mirror_ != nullptr) mirror_->drop();
  std::vector<std::string> good;
  if (is_first()) {
    mark_bad(why);
    for (int64_t step : list_checkpoints(options_.folder)) {
      std::string path = cat(options_.folder, "/", checkpoint_name(step));
      if (verdict_on(path) == CheckpointVerdict::kGood) good.insert(good.begin(), std::move(path));
    }
  }
  PARTITA_ASSIGN_OR_RETURN(auto manifest, load_first_of(std::move(good), true));
  if (!manifest) return absl::FailedPreconditionError("no checkpoint is good: there is nothing to go back to");
  last_good_ = -1;
  return *std::move(manifest);
}

absl::Status Checkpointer::start_from() {
  auto memory = [this](const Operand& o) { return executor_.memory(o); };
  const bool from_module = is_module_path(options_.init);
  absl::Status module;
  if (from_module) {
    const auto notes =
        load_module(executor_.program(), executor_.coordinates(), tensors_, {options_.init, options_.renaming}, memory);
    module = notes.status();
    for (const std::string& note : notes.ok() && is_first() ? *notes : std::vector<std::string>())
      std::fprintf(stderr, "note: %s\n", note.c_str());
  }
  if (module.ok() && !options_.init_optimizer.empty())
    module = load_module_optimizer(executor_.program(), executor_.coordinates(),
                                   {options_.init_optimizer, options_.renaming}, memory);
  PARTITA_RETURN_IF_ERROR(all_ok(communicator_, module, "reading a module's weights"));
  if (options_.init.empty() || from_module) return absl::OkStatus();
  auto path = find_checkpoint(options_.init);
  PARTITA_RETURN_IF_ERROR(all_ok(communicator_, path.status(), "finding the checkpoint to start from"));
  CheckpointManifest manifest;
  return load(*path, true, manifest);
}

}  // namespace partita::runtime
