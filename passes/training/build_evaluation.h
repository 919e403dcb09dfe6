#pragma once

#include "absl/status/statusor.h"
#include "passes/rewrite/pass.h"

namespace partita {

// A forward graph that was imported for inference (dropout off, running statistics used), its loss attached, becomes an
// evaluation program: the loss of the whole batch, averaged over micro-batches. States are the training graph's, by
// their names (of trained weights, where the recipe has `ema`, their averages), and are only read.
absl::StatusOr<Graph> build_evaluation(const Graph& graph, const PassContext& context);

}  // namespace partita
