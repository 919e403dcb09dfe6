#include "partitioner/shard/tensor_split.h"

#include <algorithm>
#include <set>

#include "ir/graph/dependence.h"
#include "ir/mesh/factor_split.h"
#include "partitioner/prepare/pad_dimensions.h"

namespace partita {
namespace {

constexpr int64_t kAnySize = 1, kFewestRanks = 2;

// The factor of the formula as it was before its factors were cut (refine) that `factor` is a part of. What is cut off
// stands behind what it was cut from.
int uncut(const FormulaOperand& operand, int factor, int count) {
  int last = -1;
  for (const std::vector<int>& dim : operand.dims) {
    for (int f : dim) {
      if (f < count) last = f;
      if (f == factor) return last;
    }
  }
  return -1;
}

}  // namespace

// Two ranks, with sizes padded for them, say which weights can be divided: of an axis of any size alone it could not be
// told which odd sizes padding reaches (heads, vocabularies) and which it does not (257 positions).
TensorSplit::TensorSplit(const Graph& graph, int64_t sample_parts)
    : forms_(use_split_forms(graph, [&](const Node& node) { return keeps_divisible(graph, node, kFewestRanks); })),
      mesh_{{{"tensor", kAnySize}}},
      chooser_(forms_.graph, mesh_, sample_parts) {
  const PaddedGraph padded =
      pad_dimensions(forms_.graph, {.parts = kFewestRanks, .is_split = [](const State&, int) { return true; }});
  const Mesh pair = {{{"tensor", kFewestRanks}}};
  LayoutChooser of_pair(padded.graph, pair, sample_parts);
  of_pair.choose(0, AxisRole::kTensor);
  std::set<ValueId> whole;
  for (const State& s : forms_.graph.states) {
    const ValueId now = padded.now[static_cast<size_t>(s.value)];
    if (is_weight(forms_.graph, s) && !of_pair.sharding(now).is_split()) whole.insert(s.value);
  }
  chooser_.choose(0, AxisRole::kTensor, /*gather=*/true, [&](const PropagatedFactor& factor) {
    return std::none_of(factor.values.begin(), factor.values.end(),
                        [&](const auto& v) { return whole.count(v.first); });
  });
}

const std::vector<size_t>& TensorSplit::factors_of(ValueId v) const {
  return chooser_.factors_of(forms_.now[static_cast<size_t>(v)]);
}

std::vector<bool> TensorSplit::divided(const Node& node, const Formula& formula) const {
  Formula cut = formula;
  auto each_split = [&](auto visit) {  // visit(is an output, which of the formula's, how it lies)
    size_t present = 0;
    for (ValueId v : node.inputs) {
      if (v == kNoValue) continue;
      if (divides(v)) visit(false, present, chooser_.sharding(forms_.now[static_cast<size_t>(v)]));
      ++present;
    }
    for (size_t k = 0; k < node.outputs.size(); ++k) {
      if (divides(node.outputs[k])) visit(true, k, chooser_.sharding(forms_.now[static_cast<size_t>(node.outputs[k])]));
    }
  };
  each_split([&](bool output, size_t k, const Sharding& s) { refine(cut, output, k, s, mesh_); });
  std::vector<bool> out(formula.factors.size(), false);
  each_split([&](bool output, size_t k, const Sharding& s) {
    const FormulaOperand& operand = output ? cut.outputs[k] : cut.inputs[k];
    auto mark = [&](const auto& asked) {
      for (const auto& [factor, axes] : asked) {
        const int f = uncut(operand, factor, static_cast<int>(out.size()));
        if (f >= 0) out[static_cast<size_t>(f)] = true;
      }
    };
    mark(proposals(cut, operand, s, mesh_));
    mark(split_whole_factors(cut, operand, s, mesh_));
  });
  return out;
}

}  // namespace partita
