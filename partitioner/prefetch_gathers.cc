// Of gathers A B C D, each used first by a, b, c, d, with room for two to wait:
//
//   A a B b C c D d   becomes   A B C a D b c d
//
// C is started when A is used: B and C wait then.
#include "partitioner/prefetch_gathers.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

namespace partita {
namespace {

// What is at hand when a segment begins: states, and what the prologue made of them, under other shapes.
class Gathers {
 public:
  explicit Gathers(const Graph& graph) : g_(graph), readers_(uses(graph)), state_(graph.values.size(), false) {
    for (const State& s : graph.states) state_[s.value] = true;
    for (const Node& node : graph.nodes) {
      bool follows = node.inputs.size() == 1 && state_[node.inputs[0]] &&
                     (node.op->view || node.segment == Segment::kPrologue) && !node.op->communicates;
      if (follows) state_[node.outputs[0]] = true;
    }
  }

  bool is_gather(const Node& node) const {
    return node.op->communicates && node.inputs.size() == 1 && node.outputs.size() == 1 &&
           node.segment != Segment::kPrologue && state_[node.inputs[0]] &&
           byte_size(g_.type(node.outputs[0])) > byte_size(g_.type(node.inputs[0]));
  }

  // The first node that computes with a gathered value, and the last that reads it: through nodes that leave its
  // elements in another order, which do not count as a use.
  std::pair<NodeId, NodeId> span(const Node& gather) const {
    NodeId first = static_cast<NodeId>(g_.nodes.size()), last = kNoNode;
    std::vector<ValueId> front = gather.outputs;
    while (!front.empty()) {
      ValueId v = front.back();
      front.pop_back();
      for (NodeId n : readers_[v]) {
        const Node& reader = g_.nodes[n];
        last = std::max(last, n);
        bool moves = reader.inputs.size() == 1 && reader.op->flops_per_point == 0 && !reader.op->kernel &&
                     g_.type(reader.outputs[0]).dtype == g_.type(v).dtype &&
                     elements(g_.type(reader.outputs[0]).shape) == elements(g_.type(v).shape);
        if (moves) {
          front.push_back(reader.outputs[0]);
        } else {
          first = std::min(first, n);
        }
      }
    }
    return {first, last};
  }

 private:
  const Graph& g_;
  std::vector<std::vector<NodeId>> readers_;
  std::vector<bool> state_;
};

struct Gather {
  NodeId node;
  NodeId use;  // the first
  int64_t bytes;
};

}  // namespace

void prefetch_gathers(LocalProgram& program) {
  Graph& g = program.graph;
  Gathers gathers(g);
  std::vector<Gather> all;  // in the order in which they are used
  int64_t most = 0;         // that may wait
  for (size_t n = 0; n < g.nodes.size(); ++n) {
    const Node& node = g.nodes[n];
    if (!gathers.is_gather(node)) continue;
    all.push_back({static_cast<NodeId>(n), gathers.span(node).first, byte_size(g.type(node.outputs[0]))});
    most = std::max(most, all.back().bytes);
  }
  std::stable_sort(all.begin(), all.end(), [](const Gather& a, const Gather& b) { return a.use < b.use; });
  auto phase = [&](NodeId n) { return std::pair(g.nodes[n].segment, program.stage.phase(g.nodes[n])); };
  std::vector<NodeId> place(g.nodes.size());  // what moves goes before the node of this number
  std::vector<bool> moves(g.nodes.size(), false);
  for (size_t n = 0; n < place.size(); ++n) place[n] = static_cast<NodeId>(n);
  size_t oldest = 0;  // of the gathers that wait for their use together with this one
  int64_t waiting = 0;
  for (size_t k = 0; k < all.size(); ++k) {
    if (k > 0 && phase(all[k].node) != phase(all[k - 1].node)) oldest = k, waiting = 0;
    waiting += all[k].bytes;
    while (waiting > most) waiting -= all[oldest++].bytes;
    // Where the one before them is used, all of these may be on their way.
    bool first = oldest == 0 || phase(all[oldest - 1].node) != phase(all[k].node);
    NodeId to = first ? all[k].node : all[oldest - 1].use;
    while (first && to > 0 && phase(to - 1) == phase(all[k].node)) --to;
    if (to >= all[k].node || phase(to) != phase(all[k].node)) continue;
    // And its view of the state.
    for (NodeId n = all[k].node; n != kNoNode && n >= to; n = g.values[g.nodes[n].inputs[0]].producer) {
      place[n] = std::min(place[n], to);
      moves[n] = true;
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

int64_t gathered_bytes(const Graph& graph) {
  Gathers gathers(graph);
  std::vector<int64_t> change(graph.nodes.size() + 1, 0);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (!gathers.is_gather(graph.nodes[n])) continue;
    int64_t bytes = byte_size(graph.type(graph.nodes[n].outputs[0]));
    change[n] += bytes;
    change[static_cast<size_t>(std::max(gathers.span(graph.nodes[n]).second, static_cast<NodeId>(n))) + 1] -= bytes;
  }
  int64_t alive = 0, most = 0;
  for (int64_t c : change) most = std::max(most, alive += c);
  return most;
}

}  // namespace partita
