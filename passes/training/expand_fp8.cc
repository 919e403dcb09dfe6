#include "passes/training/expand_fp8.h"

#include <algorithm>
#include <map>
#include <utility>

#include "passes/rewrite/expand_node.h"

namespace partita {
namespace {

// One node of those that round a value in the same way, within a segment and of its weights' gradients.
Graph merge_roundings(const Graph& graph) {
  using Place = std::pair<Segment, bool>;
  std::map<std::pair<ValueId, Place>, std::vector<std::pair<Attrs, ValueId>>> made;
  Rewriter r(graph);
  for (const Node& node : graph.nodes) {
    if (node.op->name != "round_to_fp8") {
      r.copy(node);
      continue;
    }
    auto& alike = made[{r(node.inputs[0]), {node.segment, node.weight_gradient}}];
    auto at = std::find_if(alike.begin(), alike.end(), [&](const auto& m) { return m.first == node.attrs; });
    if (at == alike.end()) at = alike.insert(at, {node.attrs, r.copy(node)[0]});
    r.replace(node.outputs[0], at->second);
  }
  return std::move(r).finish();
}

}  // namespace

absl::StatusOr<Graph> expand_fp8(const Graph& graph, const PassContext&) {
  Rewriter r(graph);
  bool any = false;
  for (const Node& node : graph.nodes) {
    if (node.op->name == "fp8_matmul") {
      replace_by_expansion(r, graph, node);
      any = true;
    } else {
      r.copy(node);
    }
  }
  return any ? merge_roundings(std::move(r).finish()) : graph;
}

}  // namespace partita
