// Layouts that differ from one in a single choice of those that the search takes by a rule, or from few values, where
// what it bounds has all: parts of the optimizer's states on the host, single units of stages, groups that share
// states; or in one that is worth another one once it is computed again what does not fit.
#pragma once

#include <vector>

#include "partitioner/planner/cost/cost_model.h"
#include "partitioner/planner/space/layout_space.h"

namespace partita {

// Those that `space` and the problem leave open. What is computed again is left to be chosen, where it may be.
std::vector<Layout> neighbours(CostModel& model, const Space& space, const Layout& of);

}  // namespace partita
