#include "tools/verify/undo/graph_match.h"

#include <algorithm>
#include <set>

#include "tools/verify/layout/serial_values.h"

namespace partita::verifier {

GraphReader::GraphReader(const Graph& graph) : g_(graph), readers_(uses(graph)), literals_(constant_values(graph)) {
  for (const State& s : g_.states) state_of_[s.value] = &s;
}

const Node* GraphReader::maker(ValueId v) const { return v == kNoValue ? nullptr : g_.producer(v); }

const Node* GraphReader::made_by(ValueId v, std::string_view op) const {
  const Node* node = maker(v);
  return node != nullptr && node->op->name == op ? node : nullptr;
}

ValueId GraphReader::behind_views(ValueId v) const {
  for (const Node* node = maker(v); node != nullptr && movement_of(*node->op) == Movement::kView; node = maker(v))
    v = node->inputs[0];
  return v;
}

const Node* GraphReader::sum_over_ranks(ValueId v, ValueId& operand) const {
  const Node* node = maker(v);
  if (node == nullptr || !node->op->communicates || node->attrs.s("reduce", "") != "sum" ||
      node->segment < Segment::kBackward)
    return nullptr;
  operand = node->inputs[static_cast<size_t>(g_.values[v].output)];
  return node;
}

GraphReader::Remainder GraphReader::remainder_in(ValueId x) const {
  const Node* sum = made_by(x, "add");
  if (sum == nullptr) return {};
  auto at = state_of_.find(behind_views(sum->inputs[1]));
  if (at == state_of_.end() || at->second->kind != StateKind::kOptimizer || !at->second->parameter.empty()) return {};
  const auto* zeros = std::get_if<InitialRule>(&at->second->initial);
  if (zeros == nullptr || zeros->kind != InitialRuleKind::kConstant || zeros->a != 0) return {};
  for (ValueId v = at->first; v != x;) {
    if (readers_[v].size() != 1) return {};
    v = g_.nodes[readers_[v][0]].outputs[0];
  }
  return {sum->inputs[0], at->first, behind_views(at->second->next)};
}

namespace {

// Values that travel together, and are needed one by one.
bool is_joint(const Node& node) { return node.op->communicates && node.inputs.size() == node.outputs.size(); }

// Per value: whether it is needed.
std::vector<bool> live_values(const Graph& graph, const std::map<ValueId, Substitute>& values) {
  std::vector<bool> live(graph.values.size(), false);
  std::vector<ValueId> front;
  auto need = [&](ValueId v) {
    if (v != kNoValue) front.push_back(v);
  };
  for (const GraphOutput& o : graph.outputs) need(o.value);
  for (const State& s : graph.states) need(s.next);
  for (const Node& node : graph.nodes) {
    for (ValueId v : node.outputs.empty() ? node.inputs : std::vector<ValueId>{}) need(v);
  }
  while (!front.empty()) {
    ValueId v = front.back();
    front.pop_back();
    const Node* node = graph.producer(v);
    if (live[v]) continue;
    live[v] = true;
    if (auto at = values.find(v); at != values.end()) {
      need(at->second.needs);
    } else if (node != nullptr && is_joint(*node)) {
      need(node->inputs[static_cast<size_t>(graph.values[v].output)]);
    } else if (node != nullptr) {
      for (ValueId in : node->inputs) need(in);
    }
  }
  return live;
}

}  // namespace

Uncompressed substitute(const Graph& graph, const std::map<ValueId, Substitute>& values,
                        const std::vector<ValueId>& states) {
  Graph kept = graph;
  auto is_dropped = [&](ValueId v) { return std::count(states.begin(), states.end(), v) > 0; };
  for (State& s : kept.states) s.next = is_dropped(s.value) ? kNoValue : s.next;
  const std::vector<bool> live = live_values(kept, values);
  Uncompressed out;
  Rewriter r(kept);
  for (size_t n = 0; n < kept.nodes.size(); ++n) {
    const Node& node = kept.nodes[n];
    std::vector<size_t> needed;  // of the outputs
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      if (live[node.outputs[k]]) needed.push_back(k);
    }
    if (needed.empty() && !node.outputs.empty()) continue;
    const size_t before = r.builder().graph().nodes.size();
    if (auto at = values.find(node.outputs.empty() ? kNoValue : node.outputs[0]); at != values.end()) {
      r.at(node);
      r.replace(at->first, at->second.make(r, r(at->second.needs)));
    } else if (is_joint(node) && needed.size() < node.outputs.size()) {
      r.at(node);
      std::vector<ValueId> in;
      for (size_t k : needed) in.push_back(r(node.inputs[k]));
      std::vector<ValueId> out = r.builder().emit_all(node.op->name, std::move(in), node.attrs);
      for (size_t k = 0; k < needed.size(); ++k) r.replace(node.outputs[needed[k]], out[k]);
    } else {
      r.copy(node);
    }
    for (size_t k = before; k < r.builder().graph().nodes.size(); ++k) out.from.push_back(static_cast<NodeId>(n));
  }
  out.graph = std::move(r).finish();
  // Without their values, which nothing reads any more.
  std::set<std::string> names;
  for (const State& s : graph.states) {
    if (is_dropped(s.value)) names.insert(s.name);
  }
  std::erase_if(out.graph.states, [&](const State& s) { return names.count(s.name) > 0; });
  return out;
}

}  // namespace partita::verifier
