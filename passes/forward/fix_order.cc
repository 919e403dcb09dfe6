#include "passes/forward/fix_order.h"

namespace partita {

absl::StatusOr<Graph> fix_order(const Graph& graph, const PassContext& context) {
  Graph marked = graph;
  if (!context.recipe.reproducible) return marked;
  for (Node& node : marked.nodes) {
    if (node.op->attributes.find("i ordered?") != std::string_view::npos) node.attrs.set("ordered", int64_t{1});
  }
  return marked;
}

}  // namespace partita
