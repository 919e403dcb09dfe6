// The shardings of a graph's inputs and states on the mesh of a layout.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/recipe/recipe.h"
#include "partitioner/shard/plan_shardings.h"
#include "partitioner/shard/splittable.h"

namespace partita {

// What an axis finds nothing to split in is a warning. InvalidArgument where pins of values do not fit.
absl::StatusOr<PlannedGraph> place_tensors(SplittableGraph graph, const Recipe& recipe, const Layout& layout,
                                           const BatchPlan& batch, const StageScope& scope,
                                           std::vector<std::string>& warnings);
// The same, with the inputs and states that `training` has too where they are there.
absl::StatusOr<PlannedGraph> place_tensors_like(const PlannedGraph& training, SplittableGraph graph,
                                                const Recipe& recipe, const Layout& layout, const BatchPlan& batch,
                                                const StageScope& scope);

}  // namespace partita
