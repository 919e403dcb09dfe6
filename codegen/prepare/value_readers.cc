#include "codegen/prepare/value_readers.h"

namespace partita {

ValueReaders::ValueReaders(const Graph& graph) : graph_(graph), readers_(graph.values.size(), 0) {
  for (const Node& node : graph.nodes) add(node.inputs);
  for (const GraphOutput& o : graph.outputs) add({o.value});
  for (const State& s : graph.states) add({s.next});
}

void ValueReaders::add(const std::vector<ValueId>& values) {
  for (ValueId v : values) {
    if (v != kNoValue) ++readers_[static_cast<size_t>(v)];
  }
}

void ValueReaders::remove(std::vector<ValueId> values, const std::function<bool(const Node&)>& may_go) {
  while (!values.empty()) {
    const ValueId v = values.back();
    values.pop_back();
    if (v == kNoValue || --readers_[static_cast<size_t>(v)] > 0) continue;
    const Node* node = graph_.producer(v);
    if (node == nullptr || !may_go(*node)) continue;
    gone_.insert(node);
    values.insert(values.end(), node->inputs.begin(), node->inputs.end());
  }
}

bool is_in_phase(const Node& a, const Node& b) {
  return a.segment == b.segment && a.weight_gradient == b.weight_gradient && a.chunk == b.chunk && a.turn == b.turn;
}

std::vector<ValueId> same_values(Rewriter& r, const Graph& old, const std::vector<std::pair<ValueId, ValueId>>& made) {
  std::vector<ValueId> same(r.builder().graph().values.size(), kNoValue);
  for (size_t v = 0; v < old.values.size(); ++v) {
    const ValueId before = static_cast<ValueId>(v);
    if (r.has(before)) same[static_cast<size_t>(r(before))] = before;
  }
  for (const auto& [now, before] : made) same[static_cast<size_t>(now)] = before;
  return same;
}

}  // namespace partita
