#include "ir/graph/graph.h"

namespace partita {

std::vector<TensorType> input_types(const Graph& graph, const Node& node) {
  std::vector<TensorType> types;
  types.reserve(node.inputs.size());
  for (ValueId v : node.inputs) types.push_back(v == kNoValue ? TensorType{} : graph.type(v));
  return types;
}

Formula bound_formula(const Graph& graph, const Node& node) {
  std::vector<TensorType> types = input_types(graph, node);
  return bound_formula(*node.op, {node.attrs, types});
}

double node_flops(const Graph& graph, const Node& node) {
  if (node.op->flops == nullptr && node.op->flops_per_point == 0) return 0;
  std::vector<TensorType> types = input_types(graph, node);
  OpView use{node.attrs, types};
  return use_flops(*node.op, use, node.op->flops ? Formula{} : bound_formula(*node.op, use));
}

std::vector<std::vector<NodeId>> uses(const Graph& graph) {
  std::vector<std::vector<NodeId>> out(graph.values.size());
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    for (ValueId v : graph.nodes[n].inputs) {
      if (v != kNoValue && (out[v].empty() || out[v].back() != static_cast<NodeId>(n)))
        out[v].push_back(static_cast<NodeId>(n));
    }
  }
  return out;
}

std::vector<const Literal*> constant_values(const Graph& graph) {
  std::vector<const Literal*> out(graph.values.size(), nullptr);
  for (const Constant& c : graph.constants) out[c.value] = &c.literal;
  return out;
}

std::string_view onnx_name(const Graph& graph, const Node& node) {
  std::string_view origin = node.origin < 0 ? "" : std::string_view(graph.origins[static_cast<size_t>(node.origin)]);
  const size_t quote = origin.find('\'');
  return quote == origin.npos ? "" : origin.substr(quote + 1, origin.size() - quote - 2);
}

}  // namespace partita
