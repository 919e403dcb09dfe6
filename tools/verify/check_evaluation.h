// What evaluation and training have in common: the states.
#pragma once

#include "absl/status/status.h"
#include "tools/verify/bundle/bundle.h"

namespace partita::verifier {

// Each rank's evaluation program finds every state that it reads in the very part and type in which the rank's training
// program keeps it, and changes none: only sums over micro-batches are its own. Aborted: the state, what was expected
// and what was found.
absl::Status check_shared_states(const ProgramSet& training, const ProgramSet& evaluation);

// Nodes of the graph that draw random numbers, as dropout does.
int64_t random_nodes(const Graph& graph);

}  // namespace partita::verifier
