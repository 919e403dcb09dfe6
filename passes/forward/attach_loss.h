// Makes "loss" the graph's first output, and the recipe's metrics all others: picks the output that is the loss, or
// computes it from outputs and new data inputs with the targets, or those of that name that the model has; several
// losses are added up, and each is a metric. InvalidArgument where an output is missing, not a float, or (the loss
// itself) not a scalar, and where the model's input cannot be the targets.
#pragma once

#include "passes/rewrite/pass.h"

namespace partita {

absl::StatusOr<Graph> attach_loss(const Graph& graph, const PassContext& context);

}  // namespace partita
