// A bundle may have plans for several numbers of ranks, and programs for several numbers of samples or for samples of
// several lengths: whether they train alike.
#pragma once

#include "absl/status/status.h"
#include "tools/verify/bundle/bundle.h"

namespace partita::verifier {

// That two plans, each proved against its own serial program, compute the same but for the order of sums: their serial
// programs take the same samples in runs of the same size, hold the same states, and make each state, output and
// evaluation's outputs by the same expressions, whether a run's gradients come in one part or in several. Aborted with
// the first that differs.
absl::Status check_same_training(const ProgramSet& first, const ProgramSet& other);
absl::Status check_same_training(const Bundle& first, const Bundle& other);

// That `other`, which takes another number of samples a step, goes on with the states of `first` and by the same
// settings: the steps of one run take one or the other. Aborted with the first that differs.
absl::Status check_same_states(const ProgramSet& first, const ProgramSet& other);

// That `other` is besides for samples of `length`, where those of `first` have the largest of the lengths that it
// names, as many positions a step, and for nothing else. Aborted likewise.
absl::Status check_length(const ProgramSet& first, const ProgramSet& other, int64_t length);

}  // namespace partita::verifier
