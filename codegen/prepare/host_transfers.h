// Which of a GPU program's values lie in the host's memory, and what is copied between the two.
#pragma once

#include <vector>

#include "ir/graph/builder.h"
#include "ir/graph/graph.h"

namespace partita {

// A node of the update that reads a state kept on the host runs there (Node::device), and so do those after it, up to a
// collective or a product of matrices. A value that the other side reads gets a copy there, in the segment of its
// reader:
//
//   update:  m' = 0.9 m + 0.1 g  host        g' = transfer(g)  host;  m' = 0.9 m + 0.1 g'  host
//
// Every node of `graph` then reads values of its own side alone, each state's next value lies where the state does, and
// transfers (NodeRole::kCopy; result on their Node::device) are the only nodes between the sides. Inputs and
// constants are on both. `graph` has no composites any more (expand_composites.h); `host_states`: per state.
struct SidedGraph {
  Graph graph;
  std::vector<ValueId> same_as;  // for each of its values, the value of the given graph that it equals
};
SidedGraph insert_host_transfers(const Graph& graph, const std::vector<bool>& host_states);

// What `op` makes, in the place of `at`, but on that side.
std::vector<ValueId> emit_on(DeviceKind side, Rewriter& r, const OpDef& op, std::vector<ValueId> inputs,
                             const Attrs& attrs, const Node& at);

// The op of the copies. The code generator's own: no graph outside it has them.
extern const OpDef kTransfer;

}  // namespace partita
