// How many tokens an expert takes, and of which samples, where an exported model counts places (GShard, Switch): a
// running sum over tokens gives each its place with its expert, and what lies past the capacity is dropped.
#pragma once

#include "absl/status/statusor.h"
#include "ir/graph/graph.h"
#include "ir/recipe/recipe.h"

namespace partita {

// The forward graph as it would have been exported for `moe.group` samples (all of the graph's, where that is not said)
// and the capacity asked for: a step then takes as many runs of it as there are groups, each with capacity, routing
// statistics and loss of its own. Factors need the number of choices, which is that of the TopK whose result is counted
// (1 without one). InvalidArgument where no capacity is found, groups are larger than what was exported, or a size
// cannot be followed through the graph (partitioner/prepare/resize_dimensions.h).
absl::StatusOr<Graph> set_moe_capacity(const Graph& forward, const MoeCapacity& moe);

// InvalidArgument where the forward graph drops tokens: it has experts with a capacity.
absl::Status check_dropless(const Graph& forward);

}  // namespace partita
