// Stages of a pipeline whose ranks divide different things, as one plan: on one mesh whose axes split samples in one
// stage and features in another, what crosses between them is laid out anew.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "partitioner/localize/localize.h"
#include "partitioner/stages/assign_stages.h"

namespace partita {

// Plans of one graph on meshes of their own, on a mesh that all of them share: an axis of theirs is one or several of
// its axes, which are absent in stages that have no use for them.
//   data 4 | data 2 x tensor 2:   axes 2 and 2; the first stage's data axis is both of them
//   data 4 | data 2:              likewise, and the second stage lacks the second one
std::vector<ShardingPlan> on_one_mesh(std::vector<ShardingPlan> stages);

struct JoinedPlan {
  Graph graph;
  ShardingPlan plan;
};

// `plans`: of `graph` on one mesh, one for each stage of the pipeline, as if all stages had that one. In the result a
// node has the plan of its stage; what several stages compute each for itself is there once for each plan, and so is a
// data input. A value that is read under another plan than it is made under comes through a node of its own
// (ShardingPlan::stage_reshards), which lays it out as it would lie if all stages had the reader's plan. Nodes are
// marked with their stages. InvalidArgument where a plan cannot be had for the whole graph.
absl::StatusOr<JoinedPlan> join_plans(const Graph& graph, const StageAssignment& stages,
                                      const std::vector<ShardingPlan>& plans);

}  // namespace partita
