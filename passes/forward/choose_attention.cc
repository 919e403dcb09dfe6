#include "passes/forward/choose_attention.h"

#include "passes/rewrite/expand_node.h"

namespace partita {

absl::StatusOr<Graph> choose_attention(const Graph& graph, const PassContext& context) {
  if (context.recipe.attention != AttentionKernel::kMath) return graph;
  Rewriter r(graph);
  for (const Node& node : graph.nodes) {
    if (node.op->work == WorkKind::kAttention && node.op->expand != nullptr) {
      replace_by_expansion(r, graph, node);
    } else {
      r.copy(node);
    }
  }
  return std::move(r).finish();
}

}  // namespace partita
