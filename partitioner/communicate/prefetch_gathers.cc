// Of gathers A B C D, each used first by a, b, c, d, with room for two to wait:
//
//   A a B b C c D d   becomes   A B C a D b c d
//
// C is started when A is used: B and C wait then.
#include "partitioner/communicate/prefetch_gathers.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "partitioner/communicate/deferrable.h"
#include "partitioner/communicate/state_gathers.h"

namespace partita {
namespace {

using PhaseOf = std::pair<Segment, int>;

struct Gather {
  NodeId node;  // kNoNode: what forward has gathered waits for backward
  NodeId use;   // the first
  int64_t bytes;
  PhaseOf phase;
};

// Phases with other collectives whose results are used before the last gather's are.
std::map<PhaseOf, bool> crowded_phases(const LocalProgram& program, const StateGathers& gathers,
                                       const std::vector<Gather>& by_use) {
  const Graph& g = program.graph;
  auto phase = [&](NodeId n) { return PhaseOf(g.nodes[n].segment, program.stage.phase(g.nodes[n])); };
  std::map<PhaseOf, NodeId> last_use;
  for (const Gather& gather : by_use) last_use[gather.phase] = gather.use;
  const DeferrableResults results(program);
  std::map<PhaseOf, bool> crowded;
  for (size_t n = 0; n < g.nodes.size(); ++n) {
    const Node& node = g.nodes[n];
    const auto last = last_use.find(phase(static_cast<NodeId>(n)));
    if (last == last_use.end() || !results.is_joint(node) || gathers.is_gather(node)) continue;
    const NodeId use = results.first_use(node);
    if (use != kNoNode && use < last->second) crowded[last->first] = true;
  }
  return crowded;
}

}  // namespace

void prefetch_gathers(LocalProgram& program, int64_t blocks) {
  Graph& g = program.graph;
  StateGathers gathers(g);
  auto phase = [&](NodeId n) { return PhaseOf(g.nodes[n].segment, program.stage.phase(g.nodes[n])); };
  std::vector<Gather> all;  // in the order in which they are used
  for (size_t n = 0; n < g.nodes.size(); ++n) {
    const Node& node = g.nodes[n];
    if (node.segment == Segment::kPrologue || !gathers.is_gather(node)) continue;
    int64_t bytes = 0;
    for (ValueId v : node.outputs) bytes += byte_size(g.type(v));
    all.push_back({static_cast<NodeId>(n), gathers.first_use(node), bytes, phase(static_cast<NodeId>(n))});
  }
  const bool keeps = std::none_of(all.begin(), all.end(),
                                  [](const Gather& gather) { return gather.phase.first == Segment::kBackward; });
  for (size_t k = all.size(); k-- > 0 && !keeps;) {
    const Node& node = g.nodes[all[k].node];
    if (node.segment != Segment::kForward) continue;
    for (ValueId v : node.outputs) {
      const NodeId use = gathers.first_use_in_backward(v);
      if (use != kNoNode) all.push_back({kNoNode, use, byte_size(g.type(v)), phase(use)});
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const Gather& a, const Gather& b) { return a.use < b.use; });
  const int64_t largest = largest_gathered(g),
                most = blocks > 0 ? blocks * largest + largest / 16 : 0;  // that may wait
  std::map<PhaseOf, bool> crowded = crowded_phases(program, gathers, all);
  std::vector<NodeId> place(g.nodes.size());  // what moves goes before the node of this number
  std::vector<bool> moves(g.nodes.size(), false);
  for (size_t n = 0; n < place.size(); ++n) place[n] = static_cast<NodeId>(n);
  size_t oldest = 0;  // of the gathers that wait for their use together with this one
  int64_t waiting = 0;
  for (size_t k = 0; k < all.size(); ++k) {
    const PhaseOf own = all[k].phase;
    if (k > 0 && own != all[k - 1].phase) oldest = k, waiting = 0;
    const bool with_phase = keeps && !crowded[own];
    waiting += with_phase ? 0 : all[k].bytes;
    while (waiting > most) waiting -= all[oldest++].bytes;
    if (all[k].node == kNoNode) continue;
    // Where the one before them is used, all of these may be on their way.
    bool first = with_phase || oldest == 0 || all[oldest - 1].phase != own;
    NodeId to = first ? all[k].node : all[oldest - 1].use;
    while (first && to > 0 && phase(to - 1) == own) --to;
    if (to >= all[k].node || phase(to) != own) continue;
    std::vector<NodeId> moved = {all[k].node};  // and its views of the states, or of what gathers before it brought
    while (!moved.empty()) {
      const NodeId n = moved.back();
      moved.pop_back();
      if (moves[n] && place[n] <= to) continue;
      place[n] = std::min(place[n], to), moves[n] = true;
      for (ValueId v : g.nodes[n].inputs) {
        if (const NodeId maker = g.values[v].producer; maker >= to) moved.push_back(maker);
      }
    }
  }
  std::vector<NodeId> order(g.nodes.size());
  for (size_t n = 0; n < order.size(); ++n) order[n] = static_cast<NodeId>(n);
  std::stable_sort(order.begin(), order.end(), [&](NodeId a, NodeId b) {
    return std::tuple(place[a], !moves[a]) < std::tuple(place[b], !moves[b]);
  });
  std::vector<Node> nodes;
  for (NodeId n : order) nodes.push_back(std::move(g.nodes[n]));
  g.nodes = std::move(nodes);
  renumber_producers(g);
}

}  // namespace partita
