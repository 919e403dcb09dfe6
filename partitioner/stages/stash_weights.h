// PipeDream's weight stashing (Narayanan et al., 2019): every micro-batch is an optimizer step of its stage.
#pragma once

#include "absl/status/status.h"
#include "partitioner/localize/local_program.h"

namespace partita {

// `stage` is one of a pipeline whose schedule updates with each micro-batch. What leads to a state's next value goes
// into the reduce segment, which then runs after each backward pass; what needs all stages (loss, gradient norm) stays
// in the update segment, once at the end of a step. What a step did once at its start, forward does.
//
// A micro-batch's forward part reads the weights of that moment and its backward part the same ones: where other
// micro-batches update in between (all stages but the last, with several micro-batches), both read copies of them
// (op stash), which have a slot for each micro-batch in flight. The count of steps is read as it was at the step's
// start, so that random numbers do not depend on a stage's delay; they differ by the micro-batch.
//
// InvalidArgument names a state whose update needs values of other stages.
absl::Status stash_weights(LocalProgram& stage);

}  // namespace partita
