// What a program says beside what its steps compute: what lies where between steps, how large its memory is, what its
// inputs may hold, how its states begin, and what each step says of itself.
#pragma once

#include "absl/status/status.h"
#include "ir/graph/graph.h"
#include "tools/verify/bundle/bundle.h"

namespace partita::verifier {

// Aborted where
// - states or inputs lie over each other, or inputs outside their region;
// - a region or the number of slots is another than what steps, states, inputs and outputs reach;
// - an input is bounded otherwise than the serial graph's ops need (ir/graph/index_bounds.h);
// - a state begins otherwise than in the serial graph;
// - a step names another origin, block or side than its node's, or other bytes than its operands'.
absl::Status check_frame(const Graph& serial, const RankProgram& p);

}  // namespace partita::verifier
