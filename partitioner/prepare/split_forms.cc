#include "partitioner/prepare/split_forms.h"

#include <algorithm>

#include "ir/graph/builder.h"

namespace partita {

SplitForms use_split_forms(const Graph& graph, const std::function<bool(const Node&)>& wanted) {
  Rewriter r(graph);
  for (const Node& node : graph.nodes) {
    if (node.op->split_form == nullptr || !wanted(node)) {
      r.copy(node);
      continue;
    }
    r.at(node);
    std::vector<TensorType> types = input_types(graph, node);
    std::vector<ValueId> inputs, outputs;
    for (ValueId v : node.inputs) inputs.push_back(v == kNoValue ? kNoValue : r(v));
    outputs = node.op->split_form({r.builder(), node.attrs, types, inputs, {}, {}});
    if (outputs.empty()) {  // this use has no other form
      r.copy(node);
      continue;
    }
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      r.replace(node.outputs[k], outputs[k]);
      const std::string& name = graph.values[node.outputs[k]].name;
      if (!name.empty()) r.builder().name(outputs[k], name);
    }
  }
  SplitForms out;
  for (size_t v = 0; v < graph.values.size(); ++v)
    out.now.push_back(r.has(static_cast<ValueId>(v)) ? r(static_cast<ValueId>(v)) : kNoValue);
  out.graph = std::move(r).finish();
  return out;
}

bool keeps_divisible(const Graph& graph, const Node& node, int64_t ranks) {
  if (node.op->split_form == nullptr || std::count(node.inputs.begin(), node.inputs.end(), kNoValue) > 0) return false;
  Formula f = bound_formula(graph, node);
  bool any = false;
  for (size_t k = 0; k < f.factors.size(); ++k) {
    if (f.factors[k].role != FactorRole::kWhole) continue;
    int operands = 0;
    for (const FormulaOperand& o : f.inputs) operands += has_factor(o, static_cast<int>(k));
    if (operands > 1) return false;
    any = any || f.factors[k].size >= ranks;
  }
  return any;
}

int whole_samples(const Node& node, const Formula& formula) {
  const auto &in = formula.inputs[0].dims, &out = formula.outputs[0].dims;
  if (node.op->split_form == nullptr || in.empty() || out.empty() || in[0].size() != 1 || in[0] != out[0]) return -1;
  return formula.factors[in[0][0]].role == FactorRole::kWhole ? in[0][0] : -1;
}

bool keeps_samples(const Graph& graph, const Node& node, int64_t ranks) {
  if (node.op->split_form == nullptr || ranks == 1) return false;
  Formula formula = bound_formula(graph, node);
  int samples = whole_samples(node, formula);
  return samples >= 0 && formula.factors[samples].size % ranks == 0;
}

}  // namespace partita
