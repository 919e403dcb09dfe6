#include "partitioner/shard/stage_scope.h"

#include <algorithm>

namespace partita {

std::vector<bool> StageScope::read(const Graph& graph) const {
  std::vector<bool> read(graph.values.size(), is_whole());
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    const Node& node = graph.nodes[n];
    if (node.segment > Segment::kForward) continue;
    const bool reads = node.chunk > 0 ? has(node)
                                      : std::any_of(node.outputs.begin(), node.outputs.end(),
                                                    [&](ValueId v) { return read[static_cast<size_t>(v)]; });
    for (ValueId v : node.inputs) {
      if (reads && v != kNoValue) read[static_cast<size_t>(v)] = true;
    }
  }
  return read;
}

}  // namespace partita
