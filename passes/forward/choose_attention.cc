#include "passes/forward/choose_attention.h"

#include <string>

#include "passes/rewrite/expand_node.h"

namespace partita {
namespace {

bool is_attention(const Node& node) { return node.op->work == WorkKind::kAttention; }

Graph as_math(const Graph& graph) {
  Rewriter r(graph);
  for (const Node& node : graph.nodes) {
    if (is_attention(node) && node.op->expand != nullptr) {
      replace_by_expansion(r, graph, node);
    } else {
      r.copy(node);
    }
  }
  return std::move(r).finish();
}

}  // namespace

absl::StatusOr<Graph> choose_attention(const Graph& graph, const PassContext& context) {
  const AttentionKernel kernel = context.recipe.attention;
  if (kernel == AttentionKernel::kMath) return as_math(graph);
  Graph marked = graph;
  if (kernel == AttentionKernel::kAuto) return marked;
  for (Node& node : marked.nodes) {
    if (is_attention(node)) node.attrs.set("kernel", std::string(enum_name(kernel)));
  }
  return marked;
}

}  // namespace partita
