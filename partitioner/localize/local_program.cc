#include "partitioner/localize/local_program.h"

#include <algorithm>
#include <utility>

namespace partita {

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
