// Whether a run of the graph can be computed in parts of its samples.
#pragma once

#include "ir/graph/graph.h"

namespace partita {

// True where it is plain from the formulas that what the forward part sums over samples goes through linear ops alone,
// so that parts can be added up, and that nothing else needs several samples at once. False where it does not (a
// statistic over the batch that something reads), and also where samples cannot be followed: localize() then tells.
bool samples_add_up(const Graph& graph);

}  // namespace partita
