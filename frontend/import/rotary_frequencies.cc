#include "frontend/import/rotary_frequencies.h"

#include <algorithm>

namespace partita {
namespace {

constexpr int kPositions = -1;  // a value made of constants and integers alone
constexpr int kOther = -2;      // of data or of several states; else a value is made of one state and positions

bool is_vector(const Shape& shape) {
  return std::count_if(shape.begin(), shape.end(), [](int64_t n) { return n != 1; }) == 1;
}

}  // namespace

std::vector<bool> rotary_frequencies(const Graph& graph) {
  const size_t n = graph.states.size();
  std::vector<int> made_of(graph.values.size(), kPositions);
  std::vector<bool> sines(n, false), cosines(n, false), others(n, false);  // what reads the state
  for (const GraphInput& in : graph.inputs)
    made_of[in.value] = is_float(graph.type(in.value).dtype) ? kOther : kPositions;
  for (size_t s = 0; s < n; ++s) {
    const TensorType& type = graph.type(graph.states[s].value);
    made_of[graph.states[s].value] = is_float(type.dtype) && is_vector(type.shape) ? static_cast<int>(s) : kOther;
  }
  auto escapes = [&](ValueId v) {
    if (v != kNoValue && made_of[v] >= 0) others[static_cast<size_t>(made_of[v])] = true;
  };
  for (const Node& node : graph.nodes) {
    int of = kPositions;
    for (ValueId v : node.inputs) {
      const int m = v == kNoValue ? kPositions : made_of[v];
      if (m != kPositions) of = of == kPositions || of == m ? m : kOther;
    }
    if (of >= 0 && (node.op->name == "sin" || node.op->name == "cos")) {
      (node.op->name == "sin" ? sines : cosines)[static_cast<size_t>(of)] = true;
      of = kOther;
    } else if (of == kOther) {
      for (ValueId v : node.inputs) escapes(v);
    }
    for (ValueId v : node.outputs) made_of[v] = of;
  }
  for (const GraphOutput& out : graph.outputs) escapes(out.value);
  std::vector<bool> found(n);
  for (size_t s = 0; s < n; ++s) found[s] = sines[s] && cosines[s] && !others[s];
  return found;
}

}  // namespace partita
