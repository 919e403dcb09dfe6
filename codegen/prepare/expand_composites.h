// The last pass over the graph: composites that have no kernel of their own become the ops that they are made of, which
// loop nests then fuse again.
#pragma once

#include "ir/graph/graph.h"

namespace partita {

// Inputs, states, constants, outputs and origins keep their order; nodes of an expansion take segment, origin and block
// of what they replace.
Graph expand_composites(const Graph& graph);

}  // namespace partita
