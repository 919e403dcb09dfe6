// From a layout to shardings where the stages of a pipeline have meshes of their own (Layout::stages).
#pragma once

#include <string>
#include <vector>

#include "partitioner/shard/plan_shardings.h"
#include "partitioner/stages/assign_stages.h"

namespace partita {

struct PlannedStages {
  PlannedGraph joined;              // one plan on a mesh that all stages share (join_plans.h)
  std::vector<PlannedGraph> alike;  // per stage: the plan if all stages were like it, of one graph
};

absl::StatusOr<PlannedStages> plan_stages(const Graph& graph, const Recipe& recipe, const Layout& layout,
                                          const BatchPlan& batch, std::vector<std::string>& warnings);
// For a graph that shares inputs and states with one that is planned (evaluation). `owners`: the stages of training's
// states.
absl::StatusOr<PlannedStages> plan_stages_like(const PlannedStages& training, const Graph& graph, const Recipe& recipe,
                                               const Layout& layout, const BatchPlan& batch, const StateOwners& owners);

}  // namespace partita
