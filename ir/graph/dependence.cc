#include "ir/graph/dependence.h"

#include <algorithm>

namespace partita {

std::vector<bool> depends_on(const Graph& graph, std::vector<bool> roots, Through through) {
  for (const Node& node : graph.nodes) {
    const bool any =
        std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId v) { return v != kNoValue && roots[v]; });
    for (ValueId v : node.outputs) roots[v] = any && (through == Through::kAll || is_float(graph.type(v).dtype));
  }
  return roots;
}

bool is_weight(const Graph& graph, const State& state) {
  const TensorType& type = graph.type(state.value);
  return state.kind == StateKind::kParameter ||
         (state.kind == StateKind::kFrozen && is_float(type.dtype) && type.rank() > 1);
}

Dependence::Dependence(const Graph& graph) {
  std::vector<bool> data(graph.values.size(), false), parameters = data, weights = data;
  for (const GraphInput& in : graph.inputs) data[in.value] = in.kind == InputKind::kData;
  for (const State& s : graph.states) {
    parameters[s.value] = s.kind == StateKind::kParameter;
    weights[s.value] = is_weight(graph, s);
  }
  data_ = depends_on(graph, std::move(data));
  parameter_ = depends_on(graph, parameters);
  weight_ = depends_on(graph, std::move(weights));
  gradient_ = depends_on(graph, std::move(parameters), Through::kFloats);
}

}  // namespace partita
