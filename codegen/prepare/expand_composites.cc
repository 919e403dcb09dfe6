#include "codegen/prepare/expand_composites.h"

#include <algorithm>
#include <numeric>

#include "base/status.h"
#include "ir/graph/builder.h"
#include "passes/rewrite/expand_node.h"

namespace partita {
namespace {

bool expands(const Node& node) {
  return !node.op->kernel && !node.op->view && !node.op->communicates && node.op->scalar == nullptr &&
         node.op->expand != nullptr;
}

}  // namespace

Graph expand_composites(const Graph& graph, std::vector<ValueId>* became) {
  Graph now = graph;
  if (became != nullptr) {
    became->resize(graph.values.size());
    std::iota(became->begin(), became->end(), 0);
  }
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
    for (size_t v = 0; became != nullptr && v < became->size(); ++v) {
      ValueId& value = (*became)[v];
      value = r.has(value) ? r(value) : kNoValue;
    }
    now = std::move(r).finish();
  }
  return now;
}

}  // namespace partita
