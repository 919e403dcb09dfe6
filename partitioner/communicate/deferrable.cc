#include "partitioner/communicate/deferrable.h"

#include <algorithm>

namespace partita {

DeferrableResults::DeferrableResults(const LocalProgram& program) : program_(program), readers_(uses(program.graph)) {}

bool DeferrableResults::is_joint(const Node& node) const {
  if (!node.op->communicates || node.op->max_inputs >= 0) return false;
  const std::vector<int64_t>& axes = node.attrs.ints("axes");
  return std::find(axes.begin(), axes.end(), program_.stage.axis) == axes.end();
}

bool DeferrableResults::passes(const Node& node) {
  return node.inputs.size() == 1 && !node.op->kernel && !node.op->communicates &&
         (node.op->flops_per_point == 0 || node.op->scalar != nullptr);
}

template <typename GoesOn>
void DeferrableResults::walk(const Node& node, GoesOn goes_on) const {
  std::vector<ValueId> front = node.outputs;
  while (!front.empty()) {
    ValueId v = front.back();
    front.pop_back();
    for (NodeId n : readers_[v]) {
      const Node& reader = program_.graph.nodes[n];
      if (goes_on(n, reader)) front.insert(front.end(), reader.outputs.begin(), reader.outputs.end());
    }
  }
}

NodeId DeferrableResults::first_use(const Node& node) const {
  NodeId first = kNoNode;
  walk(node, [&](NodeId n, const Node& reader) {
    if (passes(reader)) return true;
    first = first == kNoNode ? n : std::min(first, n);
    return false;
  });
  return first;
}

bool DeferrableResults::are_deferrable(const Node& node) const {
  bool deferrable = true;
  walk(node, [&](NodeId, const Node& reader) {
    if (!deferrable || reader.segment > node.segment) return false;
    deferrable = passes(reader) || is_joint(reader);
    return deferrable;
  });
  return deferrable;
}

bool DeferrableResults::are_accumulated(const Node& node) const {
  bool only = true, any = false;
  walk(node, [&](NodeId, const Node& reader) {
    if (!only || passes(reader) || (is_joint(reader) && reader.attrs.s("reduce", "") == "sum")) return only;
    any = only = reader.op->sums_micro_batches;
    return false;
  });
  return only && any;
}

}  // namespace partita
