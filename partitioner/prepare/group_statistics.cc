#include "partitioner/prepare/group_statistics.h"

#include "ir/graph/builder.h"
#include "partitioner/prepare/split_forms.h"

namespace partita {

Graph group_samples(const Graph& graph, int64_t groups) {
  Rewriter r(graph);
  for (const Node& node : graph.nodes) {
    if (!keeps_samples(graph, node, groups) || node.op->attributes.find("i groups?") == std::string_view::npos) {
      r.copy(node);
      continue;
    }
    Attrs attrs = node.attrs;
    attrs.set("groups", groups);
    Formula formula = bound_formula(graph, node);
    const int samples = whole_samples(node, formula);
    std::vector<ValueId> inputs;
    for (ValueId v : node.inputs) inputs.push_back(v == kNoValue ? kNoValue : r(v));
    r.at(node);
    std::vector<ValueId> outputs = *r.builder().try_emit(*node.op, inputs, std::move(attrs));
    for (size_t k = 0; k < outputs.size(); ++k) {
      ValueId now = outputs[k];
      if (!has_factor(formula.outputs[k], samples)) now = r.builder().mean(now, {0}, false);
      r.replace(node.outputs[k], now);
      const std::string& name = graph.values[node.outputs[k]].name;
      if (!name.empty()) r.builder().name(now, name);
    }
  }
  return std::move(r).finish();
}

}  // namespace partita
