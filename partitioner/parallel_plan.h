// From pins to shardings: how many ranks each mesh axis has, and what the axes split.
#pragma once

#include <string>
#include <vector>

#include "ir/recipe.h"
#include "partitioner/localize.h"

namespace partita {

inline constexpr const char* kStageAxis = "pipeline";  // of the mesh: the stages of a pipeline

// The ranks of each kind of axis, and what is stored in parts.
struct ParallelLayout {
  int64_t pipeline = 1, data = 1, expert = 1, context = 1, tensor = 1;
  PipelineSchedule schedule = PipelineSchedule::k1f1b;
  int64_t chunks = 1;                 // of a pipeline's stage
  std::vector<std::string> cuts;      // where its stages begin (PinRecipe::cuts); empty: balanced
  int zero = 0;                       // ZeRO stage
  bool reshard_after_forward = true;  // ZeRO-3: gathered parameters are dropped after each pass, not kept for the step
  int64_t zero_group = 0;             // data x expert ranks that share one sharded copy; divides data x expert
  bool scatter_sums = false;          // Megatron's sequence parallelism over the tensor axis
  int64_t ranks() const { return pipeline * data * expert * context * tensor; }
  // Ranks that take different samples.
  int64_t sample_ranks() const { return data * expert; }
};

// What the pins ask for, over `ranks` where that is said. The data axis takes the ranks that the pins leave; the
// pipeline does where a schedule is pinned and its stages are not. InvalidArgument where the numbers do not fit.
absl::StatusOr<ParallelLayout> pinned_layout(const Recipe& recipe, std::optional<int64_t> ranks,
                                             std::vector<std::string>& warnings);

// Samples that one run of a graph takes: along dimension 0 of its data inputs, which all agree on it.
absl::StatusOr<int64_t> samples_of_run(const Graph& graph);

// How one step's samples are divided.
struct BatchPlan {
  int64_t graph_batch = 1;    // samples in one run of the graph, over all ranks that share it
  int64_t micro_batches = 1;  // runs of the graph in one step, over all ranks
  int64_t slice_ranks = 1;    // ranks that take different runs
  int64_t batch_ranks = 1;    // ranks that share one run, each with a part of its samples
  int64_t parts = 1;          // micro-batches that a rank cuts its part of a run into
};

// Divides the global batch (train.yaml's, else the graph's own) over `ranks`. Whole runs of the graph go to different
// ranks as far as they are many enough, since that needs no communication inside a run; what ranks are left share each
// run. Ranks along the expert axis exchange the tokens of one run, and share it. With running statistics of global
// batches, runs are never taken side by side: their order matters. InvalidArgument where the numbers do not divide,
// with what would.
absl::StatusOr<BatchPlan> plan_batch(const Graph& forward, const Recipe& recipe, int64_t ranks);

struct PlannedGraph {
  Graph graph;  // ops that have to be split are in a form that can be
  ShardingPlan plan;
};

// The shardings of a training graph under a layout: samples over the data and expert axes, positions over the context
// axis, features, heads and vocabulary over the tensor axis, experts over theirs; optimizer states, gradients and
// parameters stored in parts as the ZeRO stage says. What an axis finds nothing to split in is a warning. Sizes that
// the tensor axis does not divide are padded.
absl::StatusOr<PlannedGraph> plan_shardings(const Graph& graph, const Recipe& recipe, const ParallelLayout& layout,
                                            const BatchPlan& batch, std::vector<std::string>& warnings);

// The same for a graph that shares inputs and states with one that is planned (evaluation): they lie as they do there.
absl::StatusOr<PlannedGraph> plan_shardings_like(const PlannedGraph& training, const Graph& graph, const Recipe& recipe,
                                                 const ParallelLayout& layout, const BatchPlan& batch);

}  // namespace partita
