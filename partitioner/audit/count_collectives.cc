#include "partitioner/audit/count_collectives.h"

#include <algorithm>
#include <optional>

#include "ir/graph/dependence.h"
#include "ir/op/op_def.h"

namespace partita {
namespace {

// Per value: whether all that reads it, through ops of one tensor (views, transposes, collectives), is the update.
std::vector<bool> read_by_update_alone(const Graph& g) {
  std::vector<bool> late(g.values.size(), true);
  for (size_t n = g.nodes.size(); n-- > 0;) {
    const Node& node = g.nodes[n];
    bool update = node.segment > Segment::kBackward || node.op->sums_micro_batches;
    bool passes = node.op->view || node.op->communicates || node.inputs.size() == 1;
    bool outputs_late = std::all_of(node.outputs.begin(), node.outputs.end(), [&](ValueId v) { return late[v]; });
    if (update || (passes && outputs_late)) continue;
    for (ValueId v : node.inputs) {
      if (v != kNoValue) late[v] = false;
    }
  }
  return late;
}

}  // namespace

std::vector<CountedCollective> count_collectives(const LocalProgram& program) {
  const Graph& g = program.graph;
  const Dependence dependence(g);
  std::vector<bool> late = read_by_update_alone(g);
  std::vector<CountedCollective> moves;
  for (const Node& node : g.nodes) {
    const std::optional<CollectiveOp>& kind = node.op->collective;
    if (!kind) continue;
    ValueId in = node.inputs[0], out = node.outputs[0];
    int64_t count = elements(g.type(in).shape);
    bool gradient = node.segment >= Segment::kBackward && late[out];
    bool activation = is_float(g.type(in).dtype) && dependence.on_parameter(in) && count > 1;
    moves.push_back({*kind, node.segment >= Segment::kBackward, gradient, activation, count, node.origin});
  }
  return moves;
}

}  // namespace partita
