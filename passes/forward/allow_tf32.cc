#include "passes/forward/allow_tf32.h"

namespace partita {
namespace {

// Ops that have a kernel which multiplies in tf32 take the attribute.
bool takes_mark(const OpDef& op) { return op.attributes.find("i tf32?") != std::string_view::npos; }

}  // namespace

absl::StatusOr<Graph> allow_tf32(const Graph& graph, const PassContext& context) {
  Graph marked = graph;
  if (context.recipe.precision != Precision::kTf32) return marked;
  for (Node& node : marked.nodes) {
    if (takes_mark(*node.op) && marked.type(node.inputs[0]).dtype == DType::kF32) node.attrs.set("tf32", int64_t{1});
  }
  return marked;
}

}  // namespace partita
