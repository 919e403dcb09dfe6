#include "codegen/expand_composites.h"

#include <algorithm>

#include "base/cat.h"
#include "base/status.h"
#include "ir/builder.h"

namespace partita {
namespace {

bool expands(const Node& node) {
  return !node.op->kernel && !node.op->view && !node.op->communicates && node.op->scalar == nullptr &&
         node.op->expand != nullptr;
}

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

}  // namespace

Graph expand_composites(const Graph& graph) {
  Graph now = graph;
  for (int round = 0; std::any_of(now.nodes.begin(), now.nodes.end(), expands); ++round) {
    PARTITA_CHECK(round < 16, "expansions without end");
    Rewriter r(now);
    for (const Node& node : now.nodes) {
      if (expands(node)) {
        replace_by_expansion(r, now, node);
      } else {
        r.copy(node);
      }
    }
    now = std::move(r).finish();
  }
  return now;
}

}  // namespace partita
