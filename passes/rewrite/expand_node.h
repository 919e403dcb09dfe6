// A node in smaller ops, through its op's own expansion.
#pragma once

#include "ir/graph/builder.h"

namespace partita {

// Emits the expansion of `node` of the graph that `r` rewrites, and replaces its outputs by the results. The op must
// have an expansion.
void replace_by_expansion(Rewriter& r, const Graph& graph, const Node& node);

}  // namespace partita
