// Ways to break a rank's graph, for the verifier's tests: each changes one thing that changes what is computed.
#pragma once

#include <span>

#include "tools/mutation/mutations.h"

namespace partita {

// Of the rank's graph and the program's interface, as a fault of the transformation would leave them.
std::span<const Mutation> graph_mutations();
// Of generated code, blindly: of its nests, and of what steps run it on.
std::span<const Mutation> kernel_mutations();

}  // namespace partita
