#include "passes/index_limits.h"

#include <algorithm>
#include <vector>

namespace partita {
namespace {

// The factor of a table (`fixed`: made of states and constants alone) that operand `index` of the node reads by its
// values, or -1.
int64_t indexed_size(const Graph& graph, const std::vector<bool>& fixed, const Node& node, size_t index) {
  std::vector<size_t> place(node.inputs.size(), 0);  // among the formula's operands
  size_t present = 0;
  for (size_t k = 0; k < node.inputs.size(); ++k) {
    if (node.inputs[k] == kNoValue) continue;
    if (k != index && !(fixed[node.inputs[k]] && is_float(graph.type(node.inputs[k]).dtype))) return -1;
    place[k] = present++;
  }
  Formula f = bound_formula(graph, node);
  int64_t size = -1;
  for (size_t x = 0; x < f.factors.size(); ++x) {
    if (f.factors[x].role != FactorRole::kWhole) continue;
    bool elsewhere = false;
    for (size_t k = 0; k < f.inputs.size(); ++k) {
      bool here = has_factor(f.inputs[k], static_cast<int>(x));
      if (here && k == place[index]) return -1;
      elsewhere = elsewhere || here;
    }
    if (!elsewhere) continue;
    if (size >= 0) return -1;
    size = f.factors[x].size;
  }
  return size;
}

}  // namespace

std::map<std::string, int64_t> index_limits(const Graph& graph) {
  std::vector<int> input_of(graph.values.size(), -1);
  for (size_t k = 0; k < graph.inputs.size(); ++k) {
    const GraphInput& in = graph.inputs[k];
    if (in.kind == InputKind::kData && is_integer(graph.type(in.value).dtype)) input_of[in.value] = static_cast<int>(k);
  }
  std::vector<bool> fixed(graph.values.size(), false);
  for (const State& s : graph.states) fixed[s.value] = true;
  for (const Constant& c : graph.constants) fixed[c.value] = true;
  const OpDef* cast = find_op("cast");
  std::map<std::string, int64_t> limits;
  for (const Node& node : graph.nodes) {
    bool all =
        std::all_of(node.inputs.begin(), node.inputs.end(), [&](ValueId v) { return v == kNoValue || fixed[v]; });
    for (ValueId v : node.outputs) fixed[v] = all;
    for (size_t k = 0; k < node.inputs.size(); ++k) {
      ValueId v = node.inputs[k];
      if (v == kNoValue || input_of[v] < 0) continue;
      bool same = node.op->view || (node.op == cast && is_integer(graph.type(node.outputs[0]).dtype));
      if (same) {
        input_of[node.outputs[0]] = input_of[v];
      } else if (int64_t size = indexed_size(graph, fixed, node, k); size > 0) {
        const std::string& name = graph.inputs[static_cast<size_t>(input_of[v])].name;
        auto [at, fresh] = limits.try_emplace(name, size);
        if (!fresh) at->second = std::min(at->second, size);
      }
    }
  }
  return limits;
}

}  // namespace partita
