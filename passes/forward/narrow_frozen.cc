//   w: f32 frozen, copy: bf16 = cast(w)        w: bf16 frozen
//   y = matmul(x, copy)                   ->   y = matmul(x, w)
//
// Training and evaluation hold the same states: it is decided on the forward part, which both have.
#include "passes/forward/narrow_frozen.h"

#include "base/status.h"
#include "ir/graph/builder.h"
#include "passes/rewrite/clean_up.h"

namespace partita {
namespace {

// The 16-bit type that all nodes which read `v` cast it to; its own type where they do not.
DType read_as(const Graph& graph, ValueId v, const std::vector<NodeId>& readers) {
  const DType own = graph.type(v).dtype;
  DType type = DType::kInvalid;
  for (NodeId n : readers) {
    const Node& node = graph.nodes[n];
    const DType to = node.op->casts ? node.attrs.dtype("to") : own;
    if ((to != DType::kBF16 && to != DType::kF16) || (type != DType::kInvalid && type != to)) return own;
    type = to;
  }
  return type == DType::kInvalid ? own : type;
}

}  // namespace

absl::StatusOr<Graph> narrow_frozen(const Graph& graph, const PassContext& context) {
  PARTITA_ASSIGN_OR_RETURN(Graph held, remove_dead_nodes(graph, context));  // which may read a weight in f32
  std::vector<std::vector<NodeId>> readers = uses(held);
  std::vector<bool> kept(held.values.size(), false);  // goes out of the graph as it is
  for (const GraphOutput& o : held.outputs) kept[o.value] = true;
  for (const State& s : held.states) {
    if (s.next != kNoValue) kept[s.next] = true;
  }
  for (const State& s : held.states) {
    if (s.kind != StateKind::kFrozen || kept[s.value] || held.type(s.value).dtype != DType::kF32) continue;
    held.values[s.value].type.dtype = read_as(held, s.value, readers[s.value]);
  }
  Rewriter r(held);
  for (const Node& node : held.nodes) {
    if (node.op->casts && held.type(node.inputs[0]).dtype == held.type(node.outputs[0]).dtype) {
      r.replace(node.outputs[0], r(node.inputs[0]));
    } else {
      r.copy(node);
    }
  }
  return std::move(r).finish();
}

}  // namespace partita
