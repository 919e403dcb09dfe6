// Several collectives as one over all of their values.
#pragma once

#include <vector>

#include "ir/graph/builder.h"

namespace partita {

// Emits the collectives `members` of `graph`, whose operands `r` has, as one in the context of `at`, and replaces their
// results. They are of one kind, group and type.
void emit_jointly(Rewriter& r, const Graph& graph, const std::vector<NodeId>& members, const Node& at);

}  // namespace partita
