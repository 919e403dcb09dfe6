#include "tools/mutation/graph_edits.h"

#include <algorithm>

namespace partita {

void replace_uses(Graph& g, ValueId from, ValueId to, NodeId but) {
  for (size_t n = 0; n < g.nodes.size(); ++n) {
    if (static_cast<NodeId>(n) != but) std::replace(g.nodes[n].inputs.begin(), g.nodes[n].inputs.end(), from, to);
  }
  for (State& s : g.states) {
    if (s.next == from) s.next = to;
  }
  for (GraphOutput& o : g.outputs) {
    if (o.value == from) o.value = to;
  }
}

}  // namespace partita
