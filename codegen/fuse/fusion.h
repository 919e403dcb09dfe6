// Which nodes share one sweep over memory. Groups grow greedily along the graph; nest_builder is asked whether two
// groups can be one.
#pragma once

#include <vector>

#include "codegen/fuse/nest_builder.h"
#include "codegen/prepare/code_graph.h"

namespace partita {

// What the program does next: a group's nests, or one library or collective node.
struct FusedItem {
  std::vector<NodeId> nodes;     // ascending
  std::vector<ValueId> outputs;  // values stored, never views
  GroupCode code;                // empty for library and collective nodes
  Segment segment = Segment::kForward;
  int32_t phase = 0;
  bool fused = false;  // a group of nests
};

struct FusionOptions {
  bool fuse = true;  // no: each node on its own, to compare with
  // Of the mesh: a sum over all stages of a pipeline has to be run by each, whether or not it reads the result.
  int stage_axis = -1;
};

// In an order that respects the graph and keeps communication in the order of its nodes. Free nodes that some reader
// cannot do without storing are free no more afterwards.
std::vector<FusedItem> fuse(CodeGraph& graph, const FusionOptions& options = {});

}  // namespace partita
