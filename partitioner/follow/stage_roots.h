// Where a pipeline stage can begin.
#pragma once

#include <vector>

#include "ir/graph/dependence.h"

namespace partita {

// Whether one stage has the state, and not every stage that reads it: all but the step and small frozen tables.
bool has_one_stage(const Graph& graph, const State& state);

// For each value whether a stage root makes it, or it is made of what one makes. A root is a forward node that joins
// data with such states, or that is heavy. The rest of the forward part are masks, tables, transposed weights: made
// where they are read.
std::vector<bool> made_of_stage_roots(const Graph& graph, const Dependence& dependence);

}  // namespace partita
