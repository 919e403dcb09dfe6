#include "partitioner/localize/local_program.h"

#include <algorithm>
#include <utility>

namespace partita {

std::vector<StageStep> LocalProgram::order() const {
  const int64_t stages = stage.axis < 0 ? 1 : mesh.axes[static_cast<size_t>(stage.axis)].size;
  const PipelineSchedule schedule = stage.axis < 0 ? PipelineSchedule::k1f1b : stage.schedule;
  const int64_t groups = (micro_batches + stage.overlapped - 1) / stage.overlapped;
  std::vector<StageStep> order = stage_order(schedule, stages, stage.index, stage.chunks, groups);
  if (stage.overlapped == 1) return order;
  return take_turns(order, stage.overlapped, stage.turns, micro_batches);
}

void renumber_producers(Graph& graph) {
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    for (ValueId v : graph.nodes[n].outputs) graph.values[v].producer = static_cast<NodeId>(n);
  }
}

void sort_by_execution(Graph& graph, const PipelineStage& stage) {
  auto key = [&](const Node& node) { return std::pair(node.segment, stage.phase(node)); };
  std::stable_sort(graph.nodes.begin(), graph.nodes.end(),
                   [&](const Node& a, const Node& b) { return key(a) < key(b); });
  renumber_producers(graph);
}

}  // namespace partita
