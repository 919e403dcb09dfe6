#include "partitioner/communicate/state_gathers.h"

#include <algorithm>
#include <map>
#include <utility>

namespace partita {

StateGathers::StateGathers(const Graph& graph)
    : g_(graph), readers_(uses(graph)), state_(graph.values.size(), false), gathered_(graph.values.size(), false) {
  for (const State& s : graph.states) state_[s.value] = true;
  for (const Node& node : graph.nodes) {
    bool follows = node.inputs.size() == 1 && state_[node.inputs[0]] &&
                   (node.op->view || node.segment == Segment::kPrologue) && !node.op->communicates;
    if (follows) state_[node.outputs[0]] = true;
    if (is_gather(node)) {
      for (ValueId v : node.outputs) gathered_[v] = true;
    } else if (node.inputs.size() == 1 && gathered_[node.inputs[0]] && moves(node)) {
      gathered_[node.outputs[0]] = true;
    }
  }
}

// Whether the node only leaves the elements of a value in another order.
bool StateGathers::moves(const Node& node) const {
  if (node.inputs.size() != 1 || node.op->flops_per_point != 0 || node.op->kernel || node.op->communicates)
    return false;
  const TensorType &from = g_.type(node.inputs[0]), &to = g_.type(node.outputs[0]);
  return from.dtype == to.dtype && elements(from.shape) == elements(to.shape);
}

bool StateGathers::is_gather(const Node& node) const {
  if (!node.op->communicates || node.inputs.empty() || node.inputs.size() != node.outputs.size()) return false;
  for (size_t k = 0; k < node.inputs.size(); ++k) {
    if ((!state_[node.inputs[k]] && !gathered_[node.inputs[k]]) ||
        byte_size(g_.type(node.outputs[k])) <= byte_size(g_.type(node.inputs[k])))
      return false;
  }
  return true;
}

// visit(reader, whether it only leaves the elements in another order)
template <typename Visit>
void StateGathers::for_readers(ValueId gathered, Visit visit) const {
  std::vector<ValueId> front = {gathered};
  while (!front.empty()) {
    ValueId v = front.back();
    front.pop_back();
    for (NodeId n : readers_[v]) {
      const Node& reader = g_.nodes[n];
      const bool goes_on = moves(reader);
      visit(n, goes_on);
      if (goes_on) front.push_back(reader.outputs[0]);
    }
  }
}

NodeId StateGathers::first_use(const Node& gather) const {
  NodeId first = static_cast<NodeId>(g_.nodes.size());
  for (ValueId v : gather.outputs) {
    for_readers(v, [&](NodeId n, bool moves) { first = moves ? first : std::min(first, n); });
  }
  return first;
}

NodeId StateGathers::first_use_in_backward(ValueId gathered) const {
  NodeId first = kNoNode;
  for_readers(gathered, [&](NodeId n, bool moves) {
    if (moves || g_.nodes[n].segment != Segment::kBackward) return;
    first = first == kNoNode ? n : std::min(first, n);
  });
  return first;
}

NodeId StateGathers::last_read(ValueId gathered) const {
  NodeId last = kNoNode;
  for_readers(gathered, [&](NodeId n, bool) { last = std::max(last, n); });
  return last;
}

int64_t largest_gathered(const Graph& graph) {
  StateGathers gathers(graph);
  int64_t largest = 0;
  std::map<std::pair<Segment, int32_t>, int64_t> of_blocks;
  for (const Node& node : graph.nodes) {
    if (node.segment == Segment::kPrologue || !gathers.is_gather(node)) continue;
    int64_t bytes = 0;
    for (ValueId v : node.outputs) bytes += byte_size(graph.type(v));
    if (node.block >= 0) bytes = of_blocks[{node.segment, node.block}] += bytes;
    largest = std::max(largest, bytes);
  }
  return largest;
}

int64_t gathered_bytes(const Graph& graph) {
  StateGathers gathers(graph);
  std::vector<int64_t> change(graph.nodes.size() + 1, 0);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (!gathers.is_gather(graph.nodes[n])) continue;
    for (ValueId v : graph.nodes[n].outputs) {
      int64_t bytes = byte_size(graph.type(v));
      change[n] += bytes;
      change[static_cast<size_t>(std::max(gathers.last_read(v), static_cast<NodeId>(n))) + 1] -= bytes;
    }
  }
  int64_t alive = 0, most = 0;
  for (int64_t c : change) most = std::max(most, alive += c);
  return most;
}

}  // namespace partita
