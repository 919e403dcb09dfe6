// How the ranks of a run agree on a step that has gone wrong: the first one sees it, all act on it together.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/communicate/collective.h"
#include "runtime/metrics/metrics.h"
#include "runtime/train/divergence.h"

namespace partita::runtime {

class DivergenceGuard {
 public:
  // `communicator` (null: one rank) outlives it.
  DivergenceGuard(const DivergenceOptions& options, Communicator* communicator)
      : watch_(options), communicator_(communicator) {}

  // On the first rank, which knows the loss and the norm of all gradients. Adds to the metrics; says on stderr what is
  // only warned of; and marks checkpoints (null: none are written) as good.
  void look_at(StepMetrics& m, Checkpointer* checkpoints);

  // Of the first rank: what the last step calls for, that all ranks have to do together. It goes along with a step.
  int64_t flag() const;
  // The step that went wrong, where all ranks know of one now: the one before `step`, of which the first rank spoke
  // along with this one (`said`: the largest flag over all ranks); or this one, if they `must_know` of it at once. With
  // one rank they do. Collective.
  absl::StatusOr<std::optional<int64_t>> bad_step(int64_t step, int64_t said, bool must_know) const;

  struct Verdict {
    std::string what;        // went wrong
    bool stops = false;      // the run ends; else it is taken back
    bool nonfinite = false;  // on the first rank
  };
  // Collective, where bad_step() gave one: what all ranks do about it.
  absl::StatusOr<Verdict> decide();
  // The run goes on with the checkpoint of `step`.
  void rolled_back(int64_t step);

  // The losses that spikes are measured against: for the checkpoint, and from it.
  std::vector<double> losses() const { return watch_.losses(); }
  void restore(const std::vector<double>& losses) { watch_.restore(losses); }

 private:
  // From one checkpoint: then it is not the samples.
  static constexpr int64_t kMostRollbacks = 3;
  static constexpr int64_t kRollsBack = 1, kStops = 2;  // flags

  DivergenceWatch watch_;
  Communicator* const communicator_;
  std::optional<Divergence> divergence_;           // on the first rank: what all ranks have to learn of and act on
  int64_t rollbacks_ = 0, rolled_back_last_ = -1;  // in a row, to that step
  std::optional<int64_t> rolled_back_to_;          // for the next step's metrics
  bool warned_ = false;
};

}  // namespace partita::runtime
