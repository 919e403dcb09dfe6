// Edits of a graph that faults are made of.
#pragma once

#include "ir/graph/graph.h"

namespace partita {

// Every node but `but`, state and output that reads `from` reads `to` instead.
void replace_uses(Graph& g, ValueId from, ValueId to, NodeId but = kNoNode);

}  // namespace partita
