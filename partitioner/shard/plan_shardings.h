// From a layout to shardings: what the axes of a mesh split.
#pragma once

#include <string>
#include <vector>

#include "partitioner/follow/layout_chooser.h"
#include "partitioner/layout/batch_plan.h"
#include "partitioner/localize/localize.h"

namespace partita {

struct PlannedGraph {
  Graph graph;  // ops that have to be split are in a form that can be
  ShardingPlan plan;
  std::vector<ChosenFactor> factors;  // why inputs and parameters are split as they are, where no pin says it
};

// The shardings of a training graph under a layout: samples over the data and expert axes, positions over the context
// axis, features, heads and vocabulary over the tensor axis, experts over theirs; optimizer states, gradients and
// parameters stored in parts as the ZeRO stage says. What an axis finds nothing to split in is a warning. Sizes that
// the tensor axis does not divide, or that leave rows unaligned, are padded.
absl::StatusOr<PlannedGraph> plan_shardings(const Graph& graph, const Recipe& recipe, const Layout& layout,
                                            const BatchPlan& batch, std::vector<std::string>& warnings);

// The same for a graph that shares inputs and states with one that is planned (evaluation): they lie as they do there.
absl::StatusOr<PlannedGraph> plan_shardings_like(const PlannedGraph& training, const Graph& graph, const Recipe& recipe,
                                                 const Layout& layout, const BatchPlan& batch);

// InvalidArgument where the recipe asks for what is not built, or pins a parameter that is not there.
absl::Status check_sharding_pins(const Graph& graph, const Recipe& recipe);

}  // namespace partita
