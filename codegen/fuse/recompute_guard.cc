#include "codegen/fuse/recompute_guard.h"

#include <algorithm>

namespace partita {
namespace {

int scalar_cost(const ScalarFunction& f) {
  int cost = 0;
  for (const ScalarNode& n : f.nodes) {
    if (n.op == ScalarOp::kPhilox)
      cost += 60;
    else if (is_transcendental(n.op))
      cost += 20;
    else if (n.op == ScalarOp::kDiv || n.op == ScalarOp::kSqrt || n.op == ScalarOp::kMod)
      cost += 6;
    else if (n.op != ScalarOp::kInput && n.op != ScalarOp::kConstant)
      cost += 1;
  }
  return cost;
}

// How often a value is computed for each of its elements. Loops that it does not vary along repeat it, unless they are
// all the columns (then it is computed once a row) or, without reductions, all innermost.
int64_t repeats(const NestValues& values, const std::vector<bool>& along) {
  const std::vector<int64_t>& sizes = values.nest.sizes;
  bool along_column = false;
  size_t after = 0;  // the loops past the last that it varies along
  for (size_t k = 0; k < sizes.size(); ++k) {
    if (!along[k] || sizes[k] == 1) continue;
    after = k + 1;
    along_column = along_column || values.is_column(k);
  }
  int64_t count = 1;
  for (size_t k = 0; k < sizes.size(); ++k) {
    bool hoisted = values.has_columns() ? values.is_column(k) && !along_column : k >= after;
    if (!along[k] && !hoisted) count *= sizes[k];
  }
  return count;
}

}  // namespace

const char* repeated_work(const CodeGraph& code, NestValues& values) {
  int total = 0;
  for (auto& [n, visit] : values.visits) {
    std::sort(visit.maps.begin(), visit.maps.end());
    if (visit.maps.front() != visit.maps.back()) return "a value needed at two places";
    if (repeats(values, visit.along) == 1) continue;
    if (code.roles[n] == NodeRole::kReduction) return "a reduction repeated";
    if (code.roles[n] != NodeRole::kElementwise) continue;
    const Node& node = code.graph.nodes[n];
    auto types = input_types(code.graph, node);
    int cost = scalar_cost(scalar_function(*node.op, {node.attrs, types}));
    total += cost;
    if (cost > 3 || total > 6) return "something expensive repeated";
  }
  return nullptr;
}

}  // namespace partita
