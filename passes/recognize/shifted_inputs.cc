#include "passes/recognize/shifted_inputs.h"

#include <algorithm>

namespace partita {
namespace {

// Whether values of the operand go to the output, one beside the other along the last dimension as they were.
bool hands_on(const Node& node) {
  return node.op->scalar != nullptr || node.op->view || node.op->name == "pad" || node.op->name == "concat" ||
         node.op->name == "slice";
}

bool drops_first(const Node& node) {
  return node.op->name == "slice" && !node.attrs.ints("starts").empty() && node.attrs.ints("starts").back() > 0;
}

bool is_shifted(const Graph& graph, ValueId input) {
  std::vector<bool> holds(graph.values.size(), false);
  holds[static_cast<size_t>(input)] = true;
  for (const Node& node : graph.nodes) {
    const bool reads = std::any_of(node.inputs.begin(), node.inputs.end(),
                                   [&](ValueId v) { return v != kNoValue && holds[static_cast<size_t>(v)]; });
    if (!reads || !hands_on(node)) continue;
    if (drops_first(node)) return true;
    for (ValueId v : node.outputs) holds[static_cast<size_t>(v)] = is_integer(graph.type(v).dtype);
  }
  return false;
}

}  // namespace

std::vector<std::string> shifted_inputs(const Graph& graph) {
  std::vector<std::string> names;
  for (const GraphInput& in : graph.inputs) {
    const TensorType& type = graph.type(in.value);
    if (in.kind == InputKind::kData && is_integer(type.dtype) && type.rank() > 1 && is_shifted(graph, in.value))
      names.push_back(in.name);
  }
  return names;
}

}  // namespace partita
