#include "runtime/trainer_notes.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>

#include "base/cat.h"
#include "base/quote.h"

namespace partita::runtime {
namespace {

constexpr double kLongWait = 0.05;  // of the time

}  // namespace

bool tell_slow_checkpoint(const Checkpointer::Cost& cost, double waited, double step, int64_t every) {
  const double interval = static_cast<double>(every) * step, gigabytes = static_cast<double>(cost.bytes) / 1e9;
  if (interval == 0 || waited <= kLongWait * interval) return false;
  std::fprintf(stderr,
               "note: %.3g GB of checkpoint take %.3g s to write (%.3g GB/s), %.3g s longer than a step takes, and "
               "training waits for it: %.0f %% of the time; with --every %.0f it would be %.0f %%\n",
               gigabytes, cost.seconds, gigabytes / cost.seconds, waited, 100 * waited / (interval + waited),
               std::ceil(waited / step / kLongWait), 100 * kLongWait);
  return true;
}

std::string start_note(int64_t steps, int64_t samples, int64_t tokens, const std::string& changes) {
  return cat(steps, steps == 1 ? " step of " : " steps of ", samples, samples == 1 ? " sample" : " samples",
             tokens > 0 ? cat(" (", tokens, " tokens)") : "", changes);
}

std::string origin_note(int64_t first_step, const CheckpointOptions& options) {
  const bool newest = options.resume == "auto";
  if (first_step > 0)
    return cat("; resumed at step ", first_step, " from ", quote(newest ? options.folder : options.resume, 1000));
  return options.init.empty() ? "" : cat("; first values from ", quote(options.init, 1000));
}

void warn_of_changes(const CheckpointManifest& from, const CheckpointManifest& now) {
  const auto warn = [](const std::string& what) {
    std::fprintf(stderr, "warning: %s than in the run that wrote the checkpoint; results will differ\n", what.c_str());
  };
  const auto differ = [](int64_t a, int64_t b) { return a > 0 && b > 0 && a != b; };
  if (from.data != now.data) warn("the data or their order are others");
  if (differ(from.epoch_samples, now.epoch_samples))
    warn(cat("the data hold another number of samples (", now.epoch_samples, ", not ", from.epoch_samples, ")"));
  if (from.seed != now.seed) warn("the seed is another");
  if (from.samples_per_step != now.samples_per_step) warn("the global batch is another");
}

void tell_early_stop(int64_t taken, int64_t evaluations, double best) {
  std::fprintf(stderr, "early stop after step %lld: no evaluation in the last %lld below %.6g\n",
               static_cast<long long>(taken), static_cast<long long>(evaluations), best);
}

void tell_rollback(const std::string& why, int64_t step, const SkippedSamples& skip) {
  std::fprintf(stderr, "note: %s; back to step %lld, and on without its samples, %lld to %lld of the stream\n",
               why.c_str(), static_cast<long long>(step), static_cast<long long>(skip.first),
               static_cast<long long>(skip.first + skip.count - 1));
}

std::vector<SkippedSamples> skipped_besides(const std::vector<SkippedSamples>& all,
                                            const std::vector<SkippedSamples>& others) {
  std::vector<SkippedSamples> left;
  std::copy_if(all.begin(), all.end(), std::back_inserter(left),
               [&](const SkippedSamples& s) { return std::find(others.begin(), others.end(), s) == others.end(); });
  return left;
}

}  // namespace partita::runtime
