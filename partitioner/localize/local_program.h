// What the one transformation leaves: one graph on local shapes for all ranks that differ in coordinates alone, and
// where its inputs, states and outputs lie on the mesh. Communication is explicit: collective nodes, in the one order
// of communication, which is the order of the nodes.
#pragma once

#include <vector>

#include "ir/graph/graph.h"
#include "ir/mesh/mesh.h"
#include "ir/mesh/sharding.h"
#include "ir/recipe/recipe.h"
#include "partitioner/layout/pipeline_schedule.h"

namespace partita {

// A logical tensor's whole shape and how it is split. A state's split may be of more: padding, zero between steps.
struct PlacedTensor {
  Shape logical;
  Sharding sharding;
  bool host = false;  // a state that is kept in host memory
};

// The part of a pipeline that a program is.
struct PipelineStage {
  int axis = -1;  // the mesh axis whose coordinate is the stage; -1: no pipeline
  int64_t index = 0;
  PipelineSchedule schedule = PipelineSchedule::k1f1b;
  int64_t chunks = 1;    // of the model that the stage has (interleaved)
  int64_t channels = 1;  // lanes of messages between two stages, each with an order of its own
  // So many micro-batches take turns, in a program without stages too, and so many in a pass at most
  // (overlap_micro_batches.h).
  int64_t overlapped = 1;
  int turns = 1;

  // Whether every micro-batch is an optimizer step: what the reduce segment holds then, updates included, runs after
  // each backward pass, and the update segment has what a step's end needs of all stages.
  bool updates_each() const { return axis >= 0 && schedule == PipelineSchedule::kPipedream; }

  // The part of its segment that the schedule runs the node in, in the order in which one micro-batch comes through
  // them: its chunk; gradients of weights after the others, where they run apart.
  int32_t phase(const Node& node) const {
    if (node.segment == Segment::kForward) return phase(StageWork::kForward, node.chunk, node.turn);
    if (node.segment != Segment::kBackward) return 0;
    const bool apart = axis >= 0 && schedule == PipelineSchedule::kZeroBubble && node.weight_gradient;
    return phase(apart ? StageWork::kWeight : StageWork::kBackward, node.chunk, node.turn);
  }
  // Of each node of a program's graph.
  std::vector<int32_t> phases(const Graph& graph) const {
    std::vector<int32_t> phases;
    for (const Node& node : graph.nodes) phases.push_back(phase(node));
    return phases;
  }
  int32_t phase(StageWork work, int chunk, int turn) const {
    if (axis < 0) return turn;  // not cut into stages, or not yet: chunks are marks then
    const int pass = work == StageWork::kForward  ? chunk
                     : work == StageWork::kWeight ? 1
                                                  : static_cast<int>(chunks) - 1 - chunk;
    return pass * turns + turn;
  }
};

struct LocalProgram {
  Graph graph;  // types are local
  Mesh mesh;
  std::vector<PlacedTensor> inputs;   // one for each graph.inputs
  std::vector<PlacedTensor> states;   // one for each graph.states
  std::vector<PlacedTensor> outputs;  // one for each graph.outputs
  int64_t micro_batches = 1;
  int64_t samples_per_step = 0;
  PipelineStage stage;
  // By Node::block: whether what the block keeps for its backward part waits in the host's memory, on a device that has
  // its own. Blocks behind the last one keep it on the device.
  std::vector<bool> blocks_on_host;
  int64_t row_parts = 1;  // that products and what lies between them are computed in (overlap_products.h)

  // What a rank runs of the micro-batches of a step.
  std::vector<StageStep> order() const;
  // Per state, whether it is kept in host memory.
  std::vector<bool> host_states() const {
    std::vector<bool> host;
    for (const PlacedTensor& s : states) host.push_back(s.host);
    return host;
  }
};

// Tells every value its producer's place, after nodes were put into another order.
void renumber_producers(Graph& graph);
// Puts nodes into the order of their segments and phases; otherwise as they were.
void sort_by_execution(Graph& graph, const PipelineStage& stage = {});

}  // namespace partita
