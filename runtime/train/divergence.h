// When a step has gone wrong, and what is to be done about it.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/kinds.h"
#include "runtime/data/order/skipped_samples.h"
#include "runtime/metrics/metrics.h"

namespace partita::runtime {

// A loss of more than `factor` times the mean of the `window` losses before it.
struct LossSpike {
  double factor = 3;
  int64_t window = 100;
  DivergenceAction action = DivergenceAction::kWarn;  // not kSkip: the update is done when the loss is known
};

struct DivergenceOptions {
  DivergenceAction on_nonfinite = DivergenceAction::kStop;
  std::optional<LossSpike> spike;

  bool rolls_back() const {
    return on_nonfinite == DivergenceAction::kRollback || (spike && spike->action == DivergenceAction::kRollback);
  }
};

struct Divergence {
  DivergenceAction action = DivergenceAction::kStop;
  std::string what;  // "step 7 (counted from 0): the loss is nan"
  bool nonfinite = false;
};

// A run that was taken back.
struct Rollback {
  std::string checkpoint;               // to this one, a folder
  int64_t bad = 0;                      // for this step
  std::vector<SkippedSamples> skipped;  // that the run had left out since the checkpoint was written
};

// Looks at each step in turn, on the rank that knows the loss and the norm of all gradients.
class DivergenceWatch {
 public:
  // So many updates in a row that were skipped: then fp16's loss scale does not find one that is small enough, or it is
  // not the samples.
  static constexpr int64_t kMostSkips = 40;

  explicit DivergenceWatch(const DivergenceOptions& options) : options_(options) {}

  // What is wrong with a step, if anything is.
  std::optional<Divergence> look(const StepMetrics& m);
  // Whether the step was finite and its update done: what it began from is good then.
  static bool is_good(const StepMetrics& m);

  // The losses that spikes are measured against: for the checkpoint, and from it.
  std::vector<double> losses() const { return {losses_.begin(), losses_.end()}; }
  void restore(const std::vector<double>& losses);

 private:
  std::optional<Divergence> nonfinite(const StepMetrics& m);
  std::optional<Divergence> spike(const StepMetrics& m);

  const DivergenceOptions options_;
  std::deque<double> losses_;
  int64_t skips_ = 0;  // in a row
};

// The end of a run that diverged: exit code ExitCode::kDiverged.
absl::Status diverged_error(const std::string& message);

}  // namespace partita::runtime
