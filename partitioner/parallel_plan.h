// From pins to shardings: how many ranks each mesh axis has, and what the axes split.
#pragma once

#include "ir/recipe.h"
#include "partitioner/localize.h"

namespace partita {

// How one step's samples are divided.
struct BatchPlan {
  int64_t graph_batch = 1;    // samples in one run of the graph, over all ranks that share it
  int64_t micro_batches = 1;  // runs of the graph in one step, over all ranks
  int64_t slice_ranks = 1;    // ranks that take different runs
  int64_t batch_ranks = 1;    // ranks that share one run, each with a part of its samples
};

// Divides the global batch (train.yaml's, else the graph's own) over `ranks`. Whole runs of the graph go to different
// ranks as far as they are many enough, since that needs no communication inside a run; what ranks are left share each
// run. With running statistics, runs are never taken side by side: their order matters. InvalidArgument where the
// numbers do not divide, with what would.
absl::StatusOr<BatchPlan> plan_batch(const Graph& forward, const Recipe& recipe, int64_t ranks);

// The shardings of a training graph for a pinned layout: samples over the data axis, optimizer states, gradients and
// parameters over it too as `pin.zero` says.
absl::StatusOr<ShardingPlan> plan_shardings(const Graph& graph, const Recipe& recipe, const BatchPlan& batch);

// Number of ranks that the pins ask for, or `ranks` where they leave it free; InvalidArgument where both are said and
// differ.
absl::StatusOr<int64_t> pinned_ranks(const Recipe& recipe, std::optional<int64_t> ranks);

}  // namespace partita
