#include "partitioner/prepare/context_axes.h"

#include <algorithm>
#include <numeric>

#include "ir/op/formula.h"

namespace partita {
namespace {

// Sizes on a rank of what all results have and is not whole, samples last; `first`: where the first operand is.
std::vector<int64_t> divisible_sizes(const Graph& graph, const Node& node, const Mesh& mesh, int64_t sample_parts,
                                     const Sharding& first) {
  const Formula f = bound_formula(graph, node);
  std::vector<int64_t> sizes;
  for (size_t k = 1; k <= f.inputs[0].dims.size(); ++k) {
    const size_t d = k % f.inputs[0].dims.size();
    int64_t ways = d == 0 ? sample_parts : 1;  // of the dimension: the outer factors take them first
    for (const Piece& p : first.dims[d]) ways *= mesh.ways(p.axes);
    for (int factor : f.inputs[0].dims[d]) {
      const Factor& x = f.factors[static_cast<size_t>(factor)];
      const int64_t taken = std::gcd(ways, x.size);
      ways /= taken;
      bool everywhere = std::all_of(f.outputs.begin(), f.outputs.end(),
                                    [&](const FormulaOperand& o) { return has_factor(o, factor); });
      if (x.role == FactorRole::kParallel && everywhere) sizes.push_back(x.size / taken);
    }
  }
  return sizes;
}

}  // namespace

std::optional<std::vector<int64_t>> cut_over(int64_t ranks, const std::vector<int64_t>& sizes) {
  if (std::any_of(sizes.begin(), sizes.end(), [&](int64_t n) { return n % ranks == 0; })) return {{ranks}};
  std::vector<int64_t> cut;
  for (int64_t n : sizes) {
    const int64_t part = std::gcd(ranks, n);
    if (part > 1) cut.push_back(part);
    ranks /= part;
  }
  if (ranks > 1) return std::nullopt;
  return cut;
}

bool keeps_positions(const Graph& graph, const Node& node) {
  if (node.op->work == WorkKind::kMemory || node.op->split_form == nullptr) return false;
  const Formula f = bound_formula(graph, node);
  for (size_t k = 0; k < f.factors.size(); ++k) {
    if (f.factors[k].role == FactorRole::kWhole && has_factor(f.outputs[0], static_cast<int>(k))) return true;
  }
  return false;
}

std::optional<std::vector<int64_t>> cut_for_heads(const Graph& graph, const Mesh& mesh, const std::vector<int>& context,
                                                  int64_t sample_parts,
                                                  const std::function<Sharding(ValueId)>& sharding) {
  const int64_t ranks = mesh.ways(context);
  std::vector<int64_t> chosen = {ranks};
  for (const Node& node : graph.nodes) {
    if (node.segment != Segment::kForward || !keeps_positions(graph, node)) continue;
    const Sharding first = sharding(node.inputs[0]);
    if (std::none_of(context.begin(), context.end(), [&](int a) { return first.is_split_by(a); })) continue;
    const std::vector<int64_t> sizes = divisible_sizes(graph, node, mesh, sample_parts, first);
    std::optional<std::vector<int64_t>> cut = cut_over(ranks, sizes);
    if (!cut) return std::nullopt;
    if (cut->size() == 1) continue;
    if (chosen.size() == 1) chosen = *cut;
    if (chosen != *cut) return std::nullopt;
  }
  return chosen;
}

}  // namespace partita
