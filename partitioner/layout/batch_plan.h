// How a step's samples are divided over the ranks of a layout.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "ir/graph/graph.h"
#include "ir/recipe/recipe.h"
#include "partitioner/layout/layout.h"

namespace partita {

// Samples that one run of a graph takes: along dimension 0 of its data inputs, which all agree on it.
absl::StatusOr<int64_t> samples_of_run(const Graph& graph);

// Samples of a step: train.yaml's, or as many as micro-batches and accumulation make up, else those of one run.
int64_t global_batch(int64_t graph_batch, const Recipe& recipe, const Layout& layout);

// The micro-batch that a rank would have if a step took runs of `run` samples: what a layout that says none has where
// the graph takes the whole `global` batch at once.
int64_t micro_batch_of_runs(int64_t run, int64_t global, const Layout& layout);

// How one step's samples are divided.
struct BatchPlan {
  int64_t graph_batch = 1;    // samples in one run of the graph, over all ranks that share it
  int64_t micro_batches = 1;  // runs of the graph in one step, over all ranks
  int64_t slice_ranks = 1;    // ranks that take different runs
  int64_t batch_ranks = 1;    // ranks that share one run, each with a part of its samples
  int64_t parts = 1;          // micro-batches that a rank cuts its part of a run into
  int64_t fixed_parts = 0;    // that sums over samples are made of, in a fixed order, whatever the ranks; 0: none are
  int64_t tensor_blocks = 1;  // of an inner dimension that the tensor axis may divide then; 1: it divides none
};

// Whether `ranks` that take different samples, `experts` of which share a run at least, can take a step's `runs` of
// `samples` each in `slices` groups: each group takes other runs, the ranks of a group share each of theirs.
bool shares_runs(int64_t ranks, int64_t experts, int64_t slices, int64_t runs, int64_t samples);

// Divides the global batch (train.yaml's, else the graph's own) over `ranks`. Whole runs of the graph go to different
// ranks as far as they are many enough, since that needs no communication inside a run; what ranks are left share each
// run. Ranks along the expert axis exchange the tokens of one run, and share it. With running statistics of global
// batches, runs are never taken side by side: their order matters; nor are they where stages differ, which all have the
// same samples of a run in one micro-batch. The layout's micro_batch counts those of a rank where most
// share a run. InvalidArgument where the numbers do not divide, with what would.
absl::StatusOr<BatchPlan> plan_batch(const Graph& forward, const Recipe& recipe, const Layout& layout);

}  // namespace partita
