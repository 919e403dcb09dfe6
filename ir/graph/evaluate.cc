#include "ir/graph/evaluate.h"

#include "base/cat.h"
#include "base/status.h"

namespace partita {
namespace {

// Per value, the last node that reads it among the nodes that are needed; -1: never read; nodes.size(): wanted.
std::vector<int64_t> last_reads(const Graph& graph, const std::vector<ValueId>& wanted, std::vector<bool>& needed) {
  std::vector<int64_t> last(graph.values.size(), -1);
  for (ValueId v : wanted) last[v] = static_cast<int64_t>(graph.nodes.size());
  needed.assign(graph.nodes.size(), false);
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    for (ValueId v : graph.nodes[n].outputs) needed[n] = needed[n] || last[v] >= 0;
    if (!needed[n]) continue;
    for (ValueId v : graph.nodes[n].inputs) {
      if (v != kNoValue && last[v] < 0) last[v] = static_cast<int64_t>(n);
    }
  }
  return last;
}

}  // namespace

std::vector<Tensor> evaluate_graph(const Graph& graph, const std::map<ValueId, Tensor>& feeds,
                                   const std::vector<ValueId>& wanted) {
  std::vector<bool> needed;
  std::vector<int64_t> last = last_reads(graph, wanted, needed);
  std::vector<Tensor> own(graph.values.size());
  std::vector<const Tensor*> at(graph.values.size(), nullptr);
  auto hold = [&](ValueId v, Tensor tensor) {
    own[v] = std::move(tensor);
    at[v] = &own[v];
  };
  for (const auto& [v, tensor] : feeds) {
    PARTITA_CHECK(tensor.type == graph.type(v),
                  cat("value ", v, " is fed ", to_string(tensor.type), ", not ", to_string(graph.type(v))));
    at[v] = &tensor;
  }
  for (const Constant& c : graph.constants) {
    if (last[c.value] >= 0) hold(c.value, to_tensor(c.literal));
  }
  for (const State& s : graph.states) {
    const Literal* first = std::get_if<Literal>(&s.initial);
    if (last[s.value] < 0 || at[s.value] != nullptr || first == nullptr) continue;
    Tensor value = to_tensor(*first);
    value.type = graph.type(s.value);  // narrower for a frozen weight that is held in 16 bits
    hold(s.value, value.type == first->type ? std::move(value) : to_tensor(to_literal(value)));
  }
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (!needed[n]) continue;
    const Node& node = graph.nodes[n];
    std::vector<const Tensor*> in;
    for (ValueId v : node.inputs) {
      PARTITA_CHECK(v == kNoValue || at[v] != nullptr, cat(graph.origin(node), ": value ", v, " has no value"));
      in.push_back(v == kNoValue ? nullptr : at[v]);
    }
    std::vector<Tensor> out = evaluate_op(*node.op, node.attrs, in);
    for (size_t k = 0; k < out.size(); ++k) hold(node.outputs[k], std::move(out[k]));
    for (ValueId v : node.inputs) {
      if (v != kNoValue && last[v] == static_cast<int64_t>(n)) own[v] = Tensor{};
    }
  }
  std::vector<Tensor> results;
  for (ValueId v : wanted) {
    PARTITA_CHECK(at[v] != nullptr, cat("value ", v, " has no value"));
    results.push_back(*at[v]);
  }
  return results;
}

std::vector<Tensor> evaluate_graph(const Graph& graph, const std::map<ValueId, Tensor>& feeds) {
  std::vector<ValueId> wanted;
  for (const GraphOutput& out : graph.outputs) wanted.push_back(out.value);
  return evaluate_graph(graph, feeds, wanted);
}

}  // namespace partita
