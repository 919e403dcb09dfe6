// Groups of layouts that share everything but ZeRO stage, offload, schedule and interleaving.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "partitioner/planner/cost/cost_model.h"
#include "partitioner/planner/space/layout_space.h"

namespace partita {

struct LayoutGroup {
  double bound;  // seconds of a step at least: compute and tensor communication, no bubbles, gathers and updates
  Layout layout;
};

// Those of a space whose stages are alike, or differ as pinned, by ascending bound. `refuse` is told why axes are none.
std::vector<LayoutGroup> layout_groups(CostModel& model, const Space& space,
                                       const std::function<void(std::string)>& refuse);

}  // namespace partita
