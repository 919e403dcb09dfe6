// From pins to a layout: how many ranks each mesh axis has, and how a step's samples are divided over them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/graph/graph.h"
#include "ir/recipe/recipe.h"
#include "partitioner/layout/pipeline_schedule.h"

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
  // Where the stages differ, one layout for each: as if all were like it. This one is then that of a stage with the
  // most sample ranks.
  std::vector<ParallelLayout> stages;
  int64_t ranks_of_stage() const { return data * expert * context * tensor; }
  int64_t ranks() const {
    int64_t all = 0;
    for (const ParallelLayout& stage : stages) all += stage.ranks_of_stage();
    return stages.empty() ? pipeline * ranks_of_stage() : all;
  }
  // Ranks that take different samples.
  int64_t sample_ranks() const { return data * expert; }
};

// What the pins ask for, over `ranks` where that is said. The data axis takes the ranks that the pins leave; the
// pipeline does where a schedule is pinned and its stages are not. Stages that differ and leave their data axis open
// take equally many of the ranks that the others leave, or without `ranks` as many as the largest one. InvalidArgument
// where the numbers do not fit.
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

// Whether `ranks` that take different samples, `experts` of which share a run at least, can take a step's `runs` of
// `samples` each in `slices` groups: each group takes other runs, the ranks of a group share each of theirs.
bool shares_runs(int64_t ranks, int64_t experts, int64_t slices, int64_t runs, int64_t samples);

// Divides the global batch (train.yaml's, else the graph's own) over `ranks`. Whole runs of the graph go to different
// ranks as far as they are many enough, since that needs no communication inside a run; what ranks are left share each
// run. Ranks along the expert axis exchange the tokens of one run, and share it. With running statistics of global
// batches, runs are never taken side by side: their order matters; nor are they where stages differ, which all have the
// same samples of a run in one micro-batch. `micro_batch` counts those of a rank where most share a run.
// InvalidArgument where the numbers do not divide, with what would.
absl::StatusOr<BatchPlan> plan_batch(const Graph& forward, const Recipe& recipe, const ParallelLayout& layout);

}  // namespace partita
