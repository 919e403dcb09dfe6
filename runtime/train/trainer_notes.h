// What the training loop tells, finds out and makes sure of on the side.
#pragma once

#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"
#include "runtime/communicate/collective.h"
#include "runtime/data/order/skipped_samples.h"
#include "runtime/train/evaluator.h"
#include "runtime/train/step_programs.h"
#include "runtime/train/trainer.h"

namespace partita::runtime {

// Where a run waits long for a checkpoint, says so on stderr, and how many steps apart they would cost little. `waited`
// and `step`: seconds; `every`: steps. Whether it did.
bool tell_slow_checkpoint(const Checkpointer::Cost& cost, double waited, double step, int64_t every);

// What the data are taken for, that they are fewer than a step takes, and what evaluations leave out, on stderr.
// `evaluator` may be null.
void tell_data(const StepPrograms& programs, int64_t first_step, const Evaluator* evaluator);

// "100 steps of 8 samples (1024 tokens)", and what `changes` says of later ones.
std::string start_note(int64_t steps, int64_t samples, int64_t tokens, const std::string& changes);
// Where the states of the first step came from; empty where they are a new model's.
std::string origin_note(int64_t first_step, const CheckpointOptions& options);

// Warns where the run that goes on, whose own checkpoint would begin with `now`, has other data, another seed, batch
// or recipe than the one that wrote the checkpoint. Of data not where the run begins a pass over `new_data`.
void warn_of_changes(const CheckpointManifest& from, const CheckpointManifest& now, bool new_data);

// That a run ends after a step, for so many evaluations in a row were not below the best.
void tell_early_stop(int64_t taken, int64_t evaluations, double best);

// That a run went back to a step, and goes on without some samples.
void tell_rollback(const std::string& why, int64_t step, const SkippedSamples& skip);

// Those of `all` that are not in `others`.
std::vector<SkippedSamples> skipped_besides(const std::vector<SkippedSamples>& all,
                                            const std::vector<SkippedSamples>& others);

// What every rank must have been given alike: from other data, flags or first weights on one host ranks would train,
// each on its own, what nobody asked for. Collective. FailedPrecondition with the ranks that differ from the others,
// and in what. `evaluator`: null without evaluation.
absl::Status agree_on_run(Communicator& communicator, const TrainOptions& options, const StepPrograms& programs,
                          const Evaluator* evaluator);

// InvalidArgument where labels of the evaluation's data are numbers of other classes than those of training's.
absl::Status check_classes(const StepPrograms& programs, const Evaluator& evaluator);

}  // namespace partita::runtime
