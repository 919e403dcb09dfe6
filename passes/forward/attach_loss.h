// Makes "loss" the graph's only output: picks the output that is the loss, or computes one from an output and a new
// data input with the targets, or one of that name that the model has. InvalidArgument where the output is missing, not
// a float, or (the loss itself) not a scalar, and where the model's input cannot be the targets.
#pragma once

#include "passes/rewrite/pass.h"

namespace partita {

absl::StatusOr<Graph> attach_loss(const Graph& graph, const PassContext& context);

}  // namespace partita
