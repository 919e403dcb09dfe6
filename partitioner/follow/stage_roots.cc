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

std::vector<uint8_t> made_of(const Graph& graph) {
  std::vector<uint8_t> out(graph.values.size(), 0);
  for (const GraphInput& in : graph.inputs) out[in.value] = in.kind == InputKind::kData ? kData : 0;
  for (const State& s : graph.states) {
    const bool table = s.kind == StateKind::kFrozen && is_table(graph.type(s.value));
    out[s.value] = table || s.kind == StateKind::kStep ? 0 : kWeight;
  }
  for (const Node& node : graph.nodes) {
    if (node.segment > Segment::kForward) continue;
    uint8_t of = 0;
    for (ValueId v : node.inputs) of |= v == kNoValue ? 0 : out[v];
    const bool heavy = node.op->work != WorkKind::kMemory;
    if ((of & kData) && ((of & kWeight) || heavy)) of |= kStaged;
    for (ValueId v : node.outputs) out[v] = of;
  }
  return out;
}

}  // namespace partita
