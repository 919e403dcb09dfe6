// Losses and metrics of a recipe, made of a model's outputs and of targets.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "ir/graph/builder.h"
#include "ir/recipe/recipe.h"

namespace partita {

// The outputs of the model, of which losses and metrics are made; the builder goes on with its graph, and takes new
// data inputs for targets that the model does not have.
struct LossScope {
  Builder& b;
  const std::vector<GraphOutput>& outputs;
};

// The scalar that is minimized, without its weight. InvalidArgument where an output is missing or not what the kind
// takes, and where the model's input cannot be the targets.
absl::StatusOr<ValueId> loss_value(const LossScope& scope, const LossRecipe& loss);

// A float scalar of a run of the graph, one of `micro_batches` in a step; of the last element of all runs, 0 in the
// others. The errors are those of a loss; besides, InvalidArgument for the last of a scalar that is made of samples.
absl::StatusOr<ValueId> metric_value(const LossScope& scope, const std::string& name, const MetricRecipe& metric,
                                     int64_t micro_batches);

}  // namespace partita
