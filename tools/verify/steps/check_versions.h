// Pipelines whose stages update with each micro-batch (PipeDream): which version of the weights a micro-batch meets.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "tools/verify/bundle/bundle.h"

namespace partita::verifier {

// Whether the reduce segment, which holds the updates then, runs with each micro-batch.
bool updates_each(const runtime::Program& program);

// Per stage, how many updates its weights are behind, at most, when a micro-batch's forward part reads them: updates of
// micro-batches before it that come later. Aborted where
// - an update does not follow its micro-batch's backward part at once, or updates come in another order than the
//   micro-batches;
// - updates come between a micro-batch's forward part and its own update, and one of its forward or backward nodes
//   reads anything that is updated but through a stash, or, as copies of weights alone, on the way into one.
// What a stash holds while its micro-batch is in flight is checked with all other values, by check_steps().
absl::StatusOr<std::vector<int64_t>> check_versions(const ProgramSet& set);

// The serial graph as one step of one micro-batch: what a step does at its start is done by forward.
Graph as_one_micro_batch(Graph serial);

}  // namespace partita::verifier
