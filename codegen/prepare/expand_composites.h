// The last pass over the graph: composites that have no kernel of their own become the ops that they are made of, which
// loop nests then fuse again.
#pragma once

#include <vector>

#include "ir/graph/graph.h"

namespace partita {

// Inputs, states, constants, outputs and origins keep their order; nodes of an expansion take segment, origin and block
// of what they replace.
// `became`, where it is not null, becomes the value of the result that each value of `graph` has become.
Graph expand_composites(const Graph& graph, std::vector<ValueId>* became = nullptr);

}  // namespace partita
