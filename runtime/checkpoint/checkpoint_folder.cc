#include "runtime/checkpoint/checkpoint_folder.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <sstream>
#include <utility>
#include <vector>

#include "base/atomic_file.h"
#include "base/cat.h"
#include "base/mapped_file.h"
#include "base/status.h"
#include "runtime/checkpoint/checkpoint_manifest.h"
#include "runtime/communicate/exchanges.h"

namespace partita::runtime {
namespace {

namespace fs = std::filesystem;

}  // namespace

void prune_checkpoints(const std::string& folder, int keep, int keep_best, std::optional<int64_t> in_use) {
  if (keep <= 0) return;
  std::vector<int64_t> steps, bad;
  int64_t newest_good = -1;
  for (int64_t step : list_checkpoints(folder)) {
    const CheckpointVerdict verdict = verdict_on(cat(folder, "/", checkpoint_name(step)));
    (verdict == CheckpointVerdict::kBad ? bad : steps).push_back(step);
    if (verdict == CheckpointVerdict::kGood) newest_good = step;
  }
  std::vector<std::pair<double, int64_t>> ranked;
  if (keep_best > 0) {
    for (int64_t step : steps) {
      auto manifest = read_manifest(cat(folder, "/", checkpoint_name(step)));
      if (!manifest.ok()) continue;
      auto at = manifest->metrics.find("evaluation_loss");
      if (at != manifest->metrics.end()) ranked.emplace_back(at->second, step);
    }
    std::sort(ranked.begin(), ranked.end());
    ranked.resize(std::min(ranked.size(), static_cast<size_t>(keep_best)));
  }
  for (size_t k = 0; k + static_cast<size_t>(keep) < steps.size(); ++k) {
    const bool best = std::any_of(ranked.begin(), ranked.end(), [&](const auto& r) { return r.second == steps[k]; });
    if (!best && steps[k] != newest_good && steps[k] != in_use) remove_checkpoint(folder, steps[k]);
  }
  for (int64_t step : bad) {
    if (!steps.empty() && steps.back() > step && step != in_use) remove_checkpoint(folder, step);
  }
}

// Takes a checkpoint out of sight first, so that a kill in between leaves no half one under its name.
void remove_checkpoint(const std::string& folder, int64_t step) {
  std::error_code ignored;
  const std::string aside = cat(folder, "/.", checkpoint_name(step), ".old.partial");
  fs::remove_all(aside, ignored);
  fs::rename(cat(folder, "/", checkpoint_name(step)), aside, ignored);
  fs::remove_all(aside, ignored);
}

void remove_unfinished(const std::string& folder) {
  std::vector<fs::path> stale;
  std::error_code error, ignored;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.starts_with(".step-") && name.ends_with(".partial")) stale.push_back(at->path());
  }
  for (const fs::path& path : stale) fs::remove_all(path, ignored);
}

absl::StatusOr<bool> is_first_of_folder(const std::string& folder, const std::string& run, Communicator& communicator) {
  auto mark = [&](int rank) { return cat(folder, "/.rank-", rank); };
  std::error_code error;
  fs::create_directories(folder, error);
  const absl::Status made = error ? file_error("make the folder", folder, error.value())
                                  : write_file_atomically(mark(communicator.rank()), run, Durable::kNo);
  PARTITA_RETURN_IF_ERROR(all_ok(&communicator, made, "writing into the checkpoint folder"));
  bool first = true;
  for (int rank = 0; rank < communicator.rank() && first; ++rank) {
    const auto seen = MappedFile::open(mark(rank));
    first = !seen.ok() || seen->text() != run;
  }
  // The marks stay until all have looked.
  PARTITA_RETURN_IF_ERROR(all_ok(&communicator, absl::OkStatus(), "looking into the checkpoint folder"));
  fs::remove(mark(communicator.rank()), error);
  return first;
}

// A line each: "STEP VERDICT WHY".
std::string describe_folder(const std::string& folder) {
  std::string text;
  for (int64_t step : list_checkpoints(folder)) {
    std::string why;
    const CheckpointVerdict verdict = verdict_on(cat(folder, "/", checkpoint_name(step)), &why);
    append(text, step, " ", static_cast<int>(verdict), " ", why, "\n");
  }
  return text;
}

void follow_folder(const std::string& folder, std::string_view described, std::optional<int64_t> in_use) {
  std::map<int64_t, std::pair<CheckpointVerdict, std::string>> wanted;
  std::istringstream lines{std::string(described)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    int64_t step = 0;
    int verdict = 0;
    std::string why;
    PARTITA_CHECK(words >> step >> verdict, "a line of describe_folder()");
    std::getline(words.ignore(), why);
    wanted[step] = {static_cast<CheckpointVerdict>(verdict), why};
  }
  for (int64_t step : list_checkpoints(folder)) {
    const auto at = wanted.find(step);
    if (at == wanted.end()) {
      // Newer ones are of a run that came further than the first rank's folder knows: its parts may still be gathered.
      if (!wanted.empty() && step < wanted.rbegin()->first && step != in_use) remove_checkpoint(folder, step);
      continue;
    }
    const auto& [verdict, why] = at->second;
    const std::string path = cat(folder, "/", checkpoint_name(step));
    if (verdict != CheckpointVerdict::kNone && verdict_on(path) != verdict) write_verdict(path, verdict, why);
  }
}

}  // namespace partita::runtime
