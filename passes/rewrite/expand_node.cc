#include "passes/rewrite/expand_node.h"

#include "base/cat.h"
#include "base/status.h"

namespace partita {

void replace_by_expansion(Rewriter& r, const Graph& graph, const Node& node) {
  r.at(node);
  auto types = input_types(graph, node);
  std::vector<ValueId> inputs;
  for (ValueId v : node.inputs) inputs.push_back(r(v));
  std::vector<ValueId> results = node.op->expand({r.builder(), node.attrs, types, inputs, {}, {}});
  PARTITA_CHECK(results.size() == node.outputs.size(), cat(node.op->name, ": the expansion has other results"));
  for (size_t k = 0; k < results.size(); ++k) {
    PARTITA_CHECK(r.builder().type(results[k]) == graph.type(node.outputs[k]),
                  cat(node.op->name, ": the expansion's result ", k, " has another type"));
    r.replace(node.outputs[k], results[k]);
  }
}

}  // namespace partita
