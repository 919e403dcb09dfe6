// A run whose global batch changes at some steps: a program for each number of samples, all on the same states.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/communicate/collective.h"
#include "runtime/data/data_source.h"
#include "runtime/execute/executor.h"

namespace partita::runtime {

// What steps take from one on.
struct BatchPhase {
  int64_t from = 0, samples = 1;
  LoadedPrograms programs;  // none: the run's own
};

class BatchRamp {
 public:
  // `phases` from step 0 on, in order; none: every step takes what `own`, the run's own program, takes. All of them
  // outlive this.
  BatchRamp(const std::vector<BatchPhase>& phases, Executor& own, Communicator* communicator, int threads);

  // What a step runs. Collective where the step is of another phase than at the last call: then another executor, on
  // the states of `own`, takes the place of the one before.
  absl::StatusOr<Executor*> enter(int64_t step);
  int64_t samples(int64_t step) const { return phases_[phase(step)].samples; }
  // The step at which the next phase begins.
  int64_t end(int64_t step) const;
  // "; 1024 samples from step 10000 on", for each change after a step.
  std::string changes(int64_t step) const;
  // The step at which the data have no whole batch left, where step `first` begins by `config`. InvalidArgument where
  // they have no end, or none at all.
  absl::StatusOr<int64_t> end_of_data(int64_t first, const DataSource& source, const DataConfig& config) const;

 private:
  struct Part {
    int64_t from, samples;
    const LoadedPrograms* programs;
  };
  size_t phase(int64_t step) const;

  std::vector<Part> phases_;
  Executor& own_;
  Communicator* const communicator_;
  const int threads_;
  std::unique_ptr<Executor> other_;  // of phase now_, where it is not the run's own program's
  size_t now_ = SIZE_MAX;
};

}  // namespace partita::runtime
