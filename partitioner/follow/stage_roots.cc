#include "partitioner/follow/stage_roots.h"

#include <algorithm>

namespace partita {
namespace {

constexpr int64_t kLargestTable = 1 << 20;  // bytes of a frozen state that every stage may have

// Floats as in f32: the search looks at the plain graph, in which no precision has narrowed them.
bool is_table(const TensorType& type) {
  const int64_t size = is_float(type.dtype) ? std::max<int64_t>(4, dtype_size(type.dtype)) : dtype_size(type.dtype);
  return elements(type.shape) * size <= kLargestTable;
}

}  // namespace

bool has_one_stage(const Graph& graph, const State& state) {
  const bool table = state.kind == StateKind::kFrozen && is_table(graph.type(state.value));
  return !table && state.kind != StateKind::kStep;
}

std::vector<bool> made_of_stage_roots(const Graph& graph, const Dependence& dependence) {
  std::vector<bool> states(graph.values.size(), false), out = states;
  for (const State& s : graph.states) states[s.value] = has_one_stage(graph, s);
  states = depends_on(graph, std::move(states));
  for (const Node& node : graph.nodes) {
    if (node.segment > Segment::kForward) continue;
    const bool heavy = node.op->work != WorkKind::kMemory;
    const bool after =
        std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId v) { return v != kNoValue && out[v]; });
    for (ValueId v : node.outputs) out[v] = after || (dependence.on_data(v) && (states[v] || heavy));
  }
  return out;
}

}  // namespace partita
