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

// A float scalar; the errors are those of a loss.
absl::StatusOr<ValueId> metric_value(const LossScope& scope, const std::string& name, const MetricRecipe& metric);

// "metric/REDUCTION/NAME": what the graph's output of a metric is called, from which its reader has both.
std::string metric_output(Reduction reduce, const std::string& name);

}  // namespace partita
