#include "partitioner/planner/workload/unit_split.h"

#include <algorithm>
#include <set>

namespace partita {
namespace {

bool in_results(const Formula& formula, int factor) {
  return std::any_of(formula.outputs.begin(), formula.outputs.end(),
                     [&](const FormulaOperand& out) { return has_factor(out, factor); });
}

double elements_of(const Graph& graph, ValueId v) { return static_cast<double>(elements(graph.type(v).shape)); }

}  // namespace

UnitSplit::UnitSplit(const Graph& graph, const GraphUnits& units, size_t unit, const TensorSplit& split)
    : g_(graph), units_(units), split_(split) {
  find_nodes(unit);
  find_sizes(unit);
  find_reduces();
  find_heads();
}

bool UnitSplit::has_heads(ValueId v) const {
  const std::vector<size_t>& factors = split_.factors_of(v);
  return std::any_of(factors.begin(), factors.end(), [&](size_t f) { return heads_.count(f) > 0; });
}

bool UnitSplit::divides(const UnitNode& node) {
  return std::find(node.divided.begin(), node.divided.end(), true) != node.divided.end();
}

void UnitSplit::find_nodes(size_t unit) {
  for (NodeId n : units_.units[unit].nodes) {
    const Node& node = g_.nodes[n];
    if (node.segment != Segment::kForward) continue;
    const std::vector<TensorType> types = input_types(g_, node);
    const OpView view{node.attrs, types};
    UnitNode use{&node, bound_formula(*node.op, view), {}, 0};
    if (node.op->work != WorkKind::kMemory) use.flops = use_flops(*node.op, view, use.formula);
    use.divided = split_.divided(node, use.formula);
    nodes_.push_back(std::move(use));
  }
}

// Of factors that stand in the unit's weights (others come in from units before): as its nodes meet them, then those of
// weights that are read without data (a table of positions).
void UnitSplit::find_sizes(size_t unit) {
  std::set<size_t> of_weights, found;
  auto add = [&](ValueId v) {
    for (size_t f : split_.factors_of(v)) {
      if (of_weights.count(f) && found.insert(f).second) sizes_.push_back(static_cast<double>(split_.size(f)));
    }
  };
  const std::vector<ValueId>& weights = units_.units[unit].read;
  for (ValueId p : weights) {
    const std::vector<size_t>& factors = split_.factors_of(p);
    of_weights.insert(factors.begin(), factors.end());
  }
  for (const UnitNode& use : nodes_) {
    for (ValueId v : use.node->inputs) {
      if (v != kNoValue) add(v);
    }
    for (ValueId v : use.node->outputs) add(v);
  }
  for (ValueId p : weights) add(p);
}

void UnitSplit::find_reduces() {
  std::set<ValueId> shared;  // values that every rank has and reads a part of: their gradients are partial sums
  for (const UnitNode& use : nodes_) {
    bool summed = false;
    for (size_t f = 0; f < use.divided.size(); ++f) {
      if (!use.divided[f]) continue;
      const bool stays = in_results(use.formula, static_cast<int>(f));
      summed = summed || !stays;
      if (use.formula.factors[f].role == FactorRole::kWhole && stays) {  // must be gathered
        reduces_.forward.push_back(elements_of(g_, use.node->inputs[0]));
        reduces_.backward.push_back(elements_of(g_, use.node->inputs[0]));
      }
    }
    if (summed) {
      double sum = 0;
      for (ValueId v : use.node->outputs) sum += elements_of(g_, v);
      reduces_.forward.push_back(sum);
    }
    if (!divides(use)) continue;
    for (ValueId v : use.node->inputs) {
      if (v == kNoValue || !units_.value(v).data || !units_.value(v).learned) continue;
      if (is_float(g_.type(v).dtype) && !divides(v)) shared.insert(units_.value(v).source);
    }
  }
  for (ValueId v : shared) reduces_.backward.push_back(elements_of(g_, v));
}

void UnitSplit::find_heads() {
  for (const UnitNode& use : nodes_) {
    if (use.node->op->work != WorkKind::kAttention) continue;
    const std::vector<size_t>& factors = split_.factors_of(use.node->outputs[0]);
    heads_.insert(factors.begin(), factors.end());
  }
}

}  // namespace partita
