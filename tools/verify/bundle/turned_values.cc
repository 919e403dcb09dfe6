#include "tools/verify/bundle/turned_values.h"

#include <algorithm>

#include "ir/op/op_def.h"
#include "runtime/program/library_kernels.h"

namespace partita::verifier {

// One that is turned is made where the value is; what no node makes, for each micro-batch.
Graph with_turned_values(Graph code, const std::vector<Claim>& claims, std::vector<NodeId>& from) {
  const auto count = static_cast<ValueId>(code.values.size());
  const bool named = std::any_of(claims.begin(), claims.end(), [&](const Claim& c) {
    return std::any_of(c.values.begin(), c.values.end(), [&](int v) { return v >= count; });
  });
  if (!named) return code;
  const std::vector<std::vector<NodeId>> readers = uses(code);
  for (ValueId v = 0; v < count; ++v) {
    Value turned = code.values[v];
    turned.producer = kNoNode;
    turned.output = 0;
    const std::vector<NodeId>& read = readers[static_cast<size_t>(v)];
    const NodeId place = code.values[v].producer >= 0 || read.empty() ? code.values[v].producer : read[0];
    if (turned.type.shape.size() == kChannelsLast.size() && place >= 0) {
      turned.type.shape = channels_last(turned.type.shape);
      turned.producer = static_cast<NodeId>(code.nodes.size());
      Node node{.op = find_op("transpose"), .inputs = {v}, .outputs = {v + count}, .attrs = {}};
      node.attrs.set("permutation", std::vector<int64_t>(kChannelsLast.begin(), kChannelsLast.end()));
      const Node& beside = code.nodes[place];
      node.origin = beside.origin, node.block = beside.block;
      node.segment = code.values[v].producer >= 0 ? beside.segment : Segment::kForward;
      node.weight_gradient = beside.weight_gradient, node.device = beside.device;
      node.chunk = beside.chunk, node.turn = beside.turn;
      code.nodes.push_back(std::move(node));
      from.push_back(from[static_cast<size_t>(place)]);
    }
    code.values.push_back(std::move(turned));
  }
  return code;
}

std::vector<ValueId> turned_values(const Graph& code) {
  std::vector<ValueId> turned(code.values.size(), kNoValue);
  for (const Node& node : code.nodes) {
    if (node.op->name == "transpose" && std::ranges::equal(node.attrs.ints("permutation"), kChannelsLast))
      turned[static_cast<size_t>(node.inputs[0])] = node.outputs[0];
  }
  return turned;
}

}  // namespace partita::verifier
