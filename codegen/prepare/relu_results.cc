#include "codegen/prepare/relu_results.h"

#include <algorithm>

#include "codegen/prepare/value_readers.h"
#include "ir/graph/builder.h"
#include "ir/op/op_def.h"

namespace partita {
namespace {

bool is(const Node& node, const char* op) { return node.op == find_op(op) && node.device == DeviceKind::kDefault; }

}  // namespace

ReluResults read_relu_results(const Graph& graph) {
  const std::vector<std::vector<NodeId>> readers = uses(graph);
  std::vector<ValueId> result(graph.values.size(), kNoValue);  // the relu of a value
  Rewriter r(graph);
  for (const Node& node : graph.nodes) {
    if (is(node, "relu") && result[node.inputs[0]] == kNoValue) result[node.inputs[0]] = node.outputs[0];
    const ValueId x = node.inputs.size() == 2 ? node.inputs[1] : kNoValue;
    const bool known = is(node, "relu_grad") && node.segment == Segment::kBackward && result[x] != kNoValue;
    const bool alone = known && std::all_of(readers[x].begin(), readers[x].end(), [&](NodeId n) {
                         const Node& reader = graph.nodes[n];
                         return reader.segment <= Segment::kForward || is(reader, "relu_grad");
                       });
    if (!alone) {
      r.copy(node);
      continue;
    }
    r.at(node);
    r.replace(node.outputs[0], r.builder().emit("relu_grad", {r(node.inputs[0]), r(result[x])}, node.attrs));
  }
  ReluResults out;
  out.same_as = same_values(r, graph, {});
  out.graph = std::move(r).finish();
  return out;
}

}  // namespace partita
