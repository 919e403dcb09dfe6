#include "partitioner/late_reads.h"

#include <algorithm>

namespace partita {

LateReads::LateReads(const LocalProgram& program) : program_(program), readers_(uses(program.graph)) {}

bool LateReads::is_joint(const Node& node) const {
  if (!node.op->communicates || node.op->max_inputs >= 0) return false;
  const std::vector<int64_t>& axes = node.attrs.ints("axes");
  return std::find(axes.begin(), axes.end(), program_.stage.axis) == axes.end();
}

bool LateReads::follows(const Node& node) {
  return node.inputs.size() == 1 && !node.op->kernel && !node.op->communicates &&
         (node.op->flops_per_point == 0 || node.op->scalar != nullptr);
}

NodeId LateReads::first_use(const Node& node) const {
  NodeId first = kNoNode;
  std::vector<ValueId> front = node.outputs;
  while (!front.empty()) {
    ValueId v = front.back();
    front.pop_back();
    for (NodeId n : readers_[v]) {
      const Node& reader = program_.graph.nodes[n];
      if (follows(reader)) {
        front.push_back(reader.outputs[0]);
      } else if (first == kNoNode || n < first) {
        first = n;
      }
    }
  }
  return first;
}

bool LateReads::are_late(const Node& node) const {
  std::vector<ValueId> front = node.outputs;
  while (!front.empty()) {
    ValueId v = front.back();
    front.pop_back();
    for (NodeId n : readers_[v]) {
      const Node& reader = program_.graph.nodes[n];
      if (reader.segment > node.segment) continue;
      if (!follows(reader) && !is_joint(reader)) return false;
      front.insert(front.end(), reader.outputs.begin(), reader.outputs.end());
    }
  }
  return true;
}

}  // namespace partita
