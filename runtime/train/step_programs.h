// What the steps of a run are and where their samples come from: one program; where the global batch changes at some
// steps, one for each number of samples; where samples have several lengths, one for each. All are on the same states.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/communicate/collective.h"
#include "runtime/data/order/length_schedule.h"
#include "runtime/execute/executor.h"
#include "runtime/execute/input_stage.h"

namespace partita::runtime {

// What steps take from one on.
struct BatchPhase {
  int64_t from = 0, samples = 1;
  LoadedPrograms programs;  // none: the run's own
};

// The steps whose samples have one length.
struct LengthPart {
  int64_t length = 0, samples = 0;
  double flops = 0;         // of such a step (StepFigures)
  LoadedPrograms programs;  // none: the run's own
};

// What the data are for the samples of one length.
DataConfig data_of_length(DataConfig data, const std::vector<LengthPart>& lengths, size_t k);
// In which order batches of each length come, by data that are of them.
LengthSchedule length_schedule(const std::vector<const DataSource*>& sources);

// Where there are several lengths, samples of the stream are counted as those of the largest: a batch is as many of
// them, whatever its length.
class StepPrograms {
 public:
  // `phases` from step 0 on, in order; none: every step takes what `own`, the run's own program, takes. `lengths`
  // ascending, the last one `own`'s; none: there is one. All of them outlive this. Not both.
  StepPrograms(const std::vector<BatchPhase>& phases, const std::vector<LengthPart>& lengths, Executor& own,
               Communicator* communicator, int threads);

  // Opens what runs a step and what follows it, with these data from their sample_offset on. Collective at the first
  // call and where the step is of another phase than at the last one: then another executor, on the states of `own`,
  // takes the place of the one before. The data's errors.
  absl::Status open(int64_t step, const DataConfig& data);
  // Starts reading batches [first, end) ahead.
  absl::Status start(int64_t first, int64_t end);
  // What is asked for below is of this batch, of the first one until the first call.
  void choose(int64_t batch);

  // Of all lengths; one, where there is one.
  const std::vector<Executor*>& executors() const { return executors_; }
  size_t chosen() const { return chosen_; }  // among these
  Executor& running() const { return *executors_[chosen_]; }
  InputStage& inputs() const { return *inputs_[chosen_]; }
  absl::StatusOr<Batch> take(int64_t batch);
  // Its number among those of its length, as inputs() has it.
  int64_t own_batch(int64_t batch) const { return place(batch).batch; }
  // Whether it has been read.
  bool read_ahead(int64_t batch) const;
  // Sends up what its step begins with, if it has.
  absl::Status upload_ahead(int64_t batch);
  // Of several; else null.
  const LengthPart* length() const { return lengths_.empty() ? nullptr : &lengths_[chosen_]; }

  int64_t samples(int64_t step) const { return phases_[phase(step)].samples; }
  // The step at which the next phase begins.
  int64_t end(int64_t step) const;
  // "; 1024 samples from step 10000 on", for each change after a step, or of each length.
  std::string changes(int64_t step) const;
  std::vector<std::string> told() const;
  // Of the data that steps read: alike where they hold the same samples; empty where more of them may come.
  std::string fingerprint() const;
  // Of the data, whose numbers are labels; empty where there are none.
  std::vector<std::string> classes() const { return inputs_.back()->source().classes(); }
  // Of a step; 0 where the data are no tokens.
  int64_t tokens(int64_t step) const { return inputs_.back()->source().tokens_per_sample() * samples(step); }
  // " lengths 512 1024": a checkpoint's data are others where this differs.
  std::string describe_lengths() const;
  // Of the data, once they are open; 0 where they have no end, as shards of which more are to come.
  int64_t epoch_samples() const;
  // Whether the data have this batch.
  bool holds(int64_t batch) const;
  // The step at which the data have no whole batch left, where step `first` begins. InvalidArgument where they have no
  // end, or none at all.
  absl::StatusOr<int64_t> end_of_data(int64_t first, const DataConfig& data) const;

 private:
  struct Part {
    int64_t from, samples;
    const LoadedPrograms* programs;
  };
  struct Place {
    size_t length = 0;
    int64_t batch = 0;  // among those of its length
  };
  size_t phase(int64_t step) const;
  Place place(int64_t batch) const;
  absl::StatusOr<std::unique_ptr<Executor>> create(const LoadedPrograms& programs) const;
  absl::Status enter(int64_t step);

  std::vector<Part> phases_;
  const std::vector<LengthPart>& lengths_;
  Executor& own_;
  Communicator* const communicator_;
  const int threads_;
  std::vector<std::unique_ptr<Executor>> others_;  // beside the run's own: of phase now_, or of each length
  size_t now_ = SIZE_MAX;
  std::vector<Executor*> executors_;
  std::vector<std::unique_ptr<InputStage>> inputs_;
  LengthSchedule schedule_;
  int64_t base_ = 0;  // of several lengths: batches of the stream before batch 0
  size_t chosen_ = 0;
};

}  // namespace partita::runtime
