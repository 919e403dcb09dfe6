// From a training graph and a layout to shardings, whether or not the stages of the layout differ.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "partitioner/shard/plan_stages.h"

namespace partita {

// Errors and warnings are those of plan_shardings() and plan_stages().
absl::StatusOr<PlannedStages> shard(const Graph& graph, const Recipe& recipe, const Layout& layout,
                                    const BatchPlan& batch, std::vector<std::string>& warnings);
// A graph that shares inputs and states with one that is sharded (evaluation). `owners`: the stages of its states.
absl::StatusOr<PlannedStages> shard_like(const PlannedStages& training, const Graph& graph, const Recipe& recipe,
                                         const Layout& layout, const BatchPlan& batch, const StateOwners& owners);

}  // namespace partita
