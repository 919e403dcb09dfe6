#include "partitioner/prepare/tensor_blocks.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "ir/graph/dependence.h"
#include "ir/mesh/factor_split.h"
#include "partitioner/follow/layout_chooser.h"

namespace partita {
namespace {

// An inner dimension as [groups, parts, part], of which an axis divides the parts.
struct Inner {
  int64_t groups = 1, parts = 1, part = 1;
};

bool is_product(const Graph& graph, const Node& node) {
  const DType type = graph.type(node.outputs[0]).dtype;
  return node.op->name == "matmul" && (type == DType::kF32 || type == DType::kF64);
}

int inner_dimension(const Graph& graph, const Node& node, size_t operand) {
  const bool transposed = node.attrs.i(operand == 0 ? "transpose_a" : "transpose_b", 0) != 0;
  return graph.type(node.inputs[operand]).rank() - (transposed == (operand == 0) ? 2 : 1);
}

// How axis 0 divides an operand's inner dimension; nullopt where it does not, or in two places.
std::optional<Inner> divided(const Graph& graph, const Node& node, size_t operand, const Sharding& sharding) {
  Inner inner;
  bool found = false;
  for (const Piece& piece : sharding.dims[static_cast<size_t>(inner_dimension(graph, node, operand))]) {
    if (!piece.axes.empty() && found) return std::nullopt;
    if (!piece.axes.empty()) {
      inner.parts = piece.size;
      found = true;
    } else {
      (found ? inner.part : inner.groups) *= piece.size;
    }
  }
  return found ? std::optional(inner) : std::nullopt;
}

// What holds for a factor whatever is marked: it is followed through all that is divided (a gradient that is gathered
// or sliced on the way could be summed while it is in parts), of activations nothing is summed over it but by products
// with weights, and neither are gradients. What a gradient is summed over is what its value lacks.
class BlockSums {
 public:
  explicit BlockSums(const Graph& graph) : graph_(graph), dependence_(graph) {}

  bool hold(const PropagatedFactor& factor) const {
    if (factor.gathered_bytes > 0) return false;
    return std::all_of(factor.nodes.begin(), factor.nodes.end(),
                       [&](NodeId n) { return holds(graph_.nodes[static_cast<size_t>(n)], factor); });
  }
  bool is_weight(ValueId v) const { return !dependence_.on_data(v); }

 private:
  bool holds(const Node& node, const PropagatedFactor& factor) const {
    const Mesh mesh{{{"tensor", 1}}};
    Formula f = bound_formula(graph_, node);
    std::vector<ValueId> values;
    for (ValueId v : node.inputs) {
      if (v != kNoValue) values.push_back(v);
    }
    const size_t inputs = values.size();
    values.insert(values.end(), node.outputs.begin(), node.outputs.end());
    auto sharding = [&](size_t k) {
      auto at = factor.values.find(values[k]);
      return at == factor.values.end() ? nullptr : &at->second;
    };
    for (size_t k = 0; k < values.size(); ++k) {
      if (sharding(k) != nullptr) refine(f, k >= inputs, k >= inputs ? k - inputs : k, *sharding(k), mesh);
    }
    int split = -1;
    for (size_t k = 0; k < values.size(); ++k) {
      if (sharding(k) == nullptr) continue;
      const auto asked = proposals(f, k >= inputs ? f.outputs[k - inputs] : f.inputs[k], *sharding(k), mesh);
      if (asked.size() > 1 || (!asked.empty() && split >= 0 && asked[0].first != split)) return false;
      if (!asked.empty()) split = asked[0].first;
    }
    if (split < 0) return true;  // gathered, without a gradient
    const bool product = is_product(graph_, node);
    const FactorRole role = f.factors[static_cast<size_t>(split)].role;
    if (role != FactorRole::kParallel && !(product && role == FactorRole::kSum)) return false;
    if (node.op->kernel && !product && node.op->work != WorkKind::kAttention) return false;
    bool of_weight = false;
    for (size_t k = 0; k < inputs; ++k) of_weight |= has_factor(f.inputs[k], split) && is_weight(values[k]);
    if (role == FactorRole::kSum && !of_weight) return false;
    for (size_t k = 0; k < inputs; ++k) {
      if (!has_factor(f.inputs[k], split) && dependence_.has_gradient(values[k]) && !(product && of_weight))
        return false;
    }
    return true;
  }

  const Graph& graph_;
  const Dependence dependence_;
};

}  // namespace

Graph mark_tensor_blocks(const Graph& graph, int64_t blocks, int64_t sample_parts) {
  const Mesh mesh{{{"tensor", blocks}}};
  LayoutChooser chooser(graph, mesh, sample_parts);
  const BlockSums sums(graph);
  chooser.choose(0, AxisRole::kTensor, /*gather=*/true, [&](const PropagatedFactor& f) { return sums.hold(f); });
  Graph marked = graph;
  for (Node& node : marked.nodes) {
    if (!is_product(graph, node)) continue;
    std::optional<Inner> inner;
    for (size_t k = 0; k < 2 && !inner; ++k) {
      if (sums.is_weight(node.inputs[k])) inner = divided(graph, node, k, chooser.sharding(node.inputs[k]));
    }
    node.attrs.set("block", inner ? inner->parts / blocks * inner->part : int64_t{0});
    if (inner && inner->groups > 1) node.attrs.set("groups", inner->groups);
  }
  return marked;
}

std::function<bool(const PropagatedFactor&)> keeps_tensor_blocks(const Graph& graph) {
  auto sums = std::make_shared<const BlockSums>(graph);
  return [&graph, sums](const PropagatedFactor& factor) {
    if (!sums->hold(factor)) return false;
    for (const Node& node : graph.nodes) {
      for (size_t k = 0; k < 2 && is_product(graph, node); ++k) {
        auto at = factor.values.find(node.inputs[k]);
        if (at == factor.values.end() || !sums->is_weight(node.inputs[k])) continue;
        const int dim = inner_dimension(graph, node, k);
        if (at->second.axes_of(dim).empty()) continue;
        const auto inner = divided(graph, node, k, at->second);
        const int64_t block = node.attrs.i("block", 0);
        if (!inner || block == 0 || inner->groups != node.attrs.i("groups", 1) ||
            inner->parts * inner->part % block != 0)
          return false;
      }
    }
    return true;
  };
}

bool divides_blocks(const Node& node, const Formula& cut, int factor, int64_t ways) {
  const int64_t block = node.attrs.i("block", 0);
  if (node.op->name != "matmul" || block == 0) return false;
  for (const std::vector<int>& dim : cut.inputs[0].dims) {
    const auto at = std::find(dim.begin(), dim.end(), factor);
    if (at == dim.end()) continue;
    int64_t groups = 1, part = 1;
    for (auto f = dim.begin(); f != at; ++f) groups *= cut.factors[static_cast<size_t>(*f)].size;
    for (auto f = std::next(at); f != dim.end(); ++f) part *= cut.factors[static_cast<size_t>(*f)].size;
    const int64_t parts = cut.factors[static_cast<size_t>(factor)].size;
    return groups == node.attrs.i("groups", 1) && parts % ways == 0 && parts / ways * part % block == 0;
  }
  return false;
}

}  // namespace partita
