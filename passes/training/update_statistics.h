#pragma once

#include "absl/status/statusor.h"
#include "passes/rewrite/pass.h"

namespace partita {

// Where batch statistics belong to replicas (semantics.batch_norm: replica), running averages move in the update, once
// a step, by the mean of what all runs and micro-batches saw: ranks then need each other's statistics only there. Under
// global statistics each run of the graph moves them, in order.
absl::StatusOr<Graph> update_statistics(const Graph& graph, const PassContext& context);

}  // namespace partita
