#include "partitioner/communicate/merge_collectives.h"

#include <utility>

namespace partita {

void emit_jointly(Rewriter& r, const Graph& graph, const std::vector<NodeId>& members, const Node& at) {
  std::vector<ValueId> in;
  for (NodeId m : members) {
    for (ValueId v : graph.nodes[m].inputs) in.push_back(r(v));
  }
  r.at(at);
  std::vector<ValueId> out = r.builder().emit_all(at.op->name, std::move(in), at.attrs);
  size_t next = 0;
  for (NodeId m : members) {
    for (ValueId v : graph.nodes[m].outputs) r.replace(v, out[next++]);
  }
}

}  // namespace partita
