#include "partitioner/planner/workload/unit_split.h"

#include <algorithm>

namespace partita {
namespace {

constexpr size_t kMostCandidates = 8;    // every subset is weighed
constexpr double kNominalSplit = 8;      // the tensor axis that subsets are weighed for
constexpr double kParameterFlops = 2e3;  // a parameter that every rank stores weighs as a product over 1000 positions

bool in_results(const Formula& formula, int factor) {
  return std::any_of(formula.outputs.begin(), formula.outputs.end(),
                     [&](const FormulaOperand& out) { return has_factor(out, factor); });
}

double elements_of(const Graph& graph, ValueId v) { return static_cast<double>(elements(graph.type(v).shape)); }

}  // namespace

TensorSplit::TensorSplit(const Graph& graph, const GraphUnits& units, size_t unit, double flops_per_reduced_element,
                         double samples)
    : g_(graph),
      units_(units),
      unit_(unit),
      flops_per_reduced_element_(flops_per_reduced_element),
      samples_(samples),
      dims_(graph.values.size()) {
  follow_nodes();
  const std::vector<int> open = candidates();
  double best = cost({});
  for (uint32_t bits = 1; bits < (1u << open.size()); ++bits) {
    Classes split;
    for (size_t k = 0; k < open.size(); ++k) {
      if (bits >> k & 1) split.insert(open[k]);
    }
    const double c = cost(split);
    if (c < best * (1 - 1e-9)) best = c, split_ = std::move(split);
  }
  reduces_ = reduces_of(split_);
}

void TensorSplit::follow_nodes() {
  for (NodeId n : units_.units[unit_].nodes) {
    const Node& node = g_.nodes[n];
    if (node.segment != Segment::kForward) continue;
    const std::vector<TensorType> types = input_types(g_, node);
    const OpView view{node.attrs, types};
    UnitNode use{&node, bound_formula(*node.op, view), {}, 0};
    if (node.op->work != WorkKind::kMemory) use.flops = use_flops(*node.op, view, use.formula);
    for (ValueId v : node.inputs) follow_parameter(v);
    classes_.apply(g_, node, use.formula, dims_, use.factors);
    nodes_.push_back(std::move(use));
  }
}

// A parameter seen through a transpose or reshape has the parameter's own classes.
void TensorSplit::follow_parameter(ValueId v) {
  constexpr size_t kLongestChain = 9;
  if (v == kNoValue || !dims_[v].empty() || units_.value(v).data || units_.value(v).parameter) return;
  std::vector<const Node*> chain;
  for (ValueId x = v; !units_.value(x).parameter;) {
    const Node* maker = g_.producer(x);
    if (!maker || maker->inputs.empty() || maker->inputs[0] == kNoValue) return;
    if (chain.size() == kLongestChain || !units_.value(x).learned) return;
    chain.push_back(maker);
    x = maker->inputs[0];
  }
  for (auto at = chain.rbegin(); at != chain.rend(); ++at) {
    std::vector<std::vector<int>> factors;
    classes_.apply(g_, **at, bound_formula(g_, **at), dims_, factors);
  }
}

// The largest classes of parameters that neither enter nor leave the unit with data.
std::vector<int> TensorSplit::candidates() const {
  const int unit = static_cast<int>(unit_);
  Classes border, seen;
  auto crosses = [&](ValueId v) {
    for (int c : leaves(v)) border.insert(c);
  };
  for (const UnitNode& use : nodes_) {
    for (ValueId v : use.node->inputs) {
      if (v != kNoValue && units_.value(v).data && units_.value(v).unit != unit) crosses(v);
    }
    for (ValueId v : use.node->outputs) {
      const std::vector<NodeId>& readers = units_.value(v).readers;
      if (std::any_of(readers.begin(), readers.end(),
                      [&](NodeId r) { return units_.of_node[r] != unit && g_.nodes[r].segment == Segment::kForward; }))
        crosses(v);
    }
  }
  std::vector<std::pair<int64_t, int>> found;
  for (ValueId p : units_.units[unit_].read) {
    if (dims_[p].size() < 2) continue;
    for (int c : leaves(p)) {
      const int64_t size = classes_.size(c);
      if (!border.count(c) && seen.insert(c).second && size > 1) found.push_back({size, c});
    }
  }
  std::sort(found.rbegin(), found.rend());
  if (found.size() > kMostCandidates) found.resize(kMostCandidates);
  std::vector<int> out;
  for (const auto& [size, c] : found) out.push_back(c);
  return out;
}

std::vector<double> TensorSplit::sizes() const {
  std::vector<double> out;
  for (int c : split_) out.push_back(static_cast<double>(classes_.size(c)));
  return out;
}

std::vector<int> TensorSplit::leaves(ValueId v) const {
  std::vector<int> out;
  for (const std::vector<int>& dim : dims_[v]) {
    const std::vector<int> of_dim = classes_.leaves(dim);
    out.insert(out.end(), of_dim.begin(), of_dim.end());
  }
  return out;
}

bool TensorSplit::divides(const UnitNode& node, int factor, const Classes& split) const {
  const std::vector<int> classes = classes_.leaves(node.factors[factor]);
  return std::any_of(classes.begin(), classes.end(), [&](int c) { return split.count(c) > 0; });
}

bool TensorSplit::divides(ValueId v, const Classes& split) const {
  const std::vector<int> classes = leaves(v);
  return std::any_of(classes.begin(), classes.end(), [&](int c) { return split.count(c) > 0; });
}

bool TensorSplit::divides(const UnitNode& node, const Classes& split) const {
  for (size_t f = 0; f < node.factors.size(); ++f) {
    if (divides(node, static_cast<int>(f), split)) return true;
  }
  return false;
}

TensorReduces TensorSplit::reduces_of(const Classes& split) const {
  TensorReduces out;
  if (split.empty()) return out;
  std::set<ValueId> shared;  // values that every rank has and reads a part of: their gradients are partial sums
  for (const UnitNode& use : nodes_) {
    bool divided = false, summed = false;
    for (size_t f = 0; f < use.factors.size(); ++f) {
      if (!divides(use, static_cast<int>(f), split)) continue;
      const bool stays = in_results(use.formula, static_cast<int>(f));
      divided = true;
      summed = summed || !stays;
      if (use.formula.factors[f].role == FactorRole::kWhole && stays) {  // must be gathered
        out.forward.push_back(elements_of(g_, use.node->inputs[0]));
        out.backward.push_back(elements_of(g_, use.node->inputs[0]));
      }
    }
    if (summed) {
      double sum = 0;
      for (ValueId v : use.node->outputs) sum += elements_of(g_, v);
      out.forward.push_back(sum);
    }
    if (!divided) continue;
    for (ValueId v : use.node->inputs) {
      if (v == kNoValue || !units_.value(v).data || !units_.value(v).learned) continue;
      if (is_float(g_.type(v).dtype) && !divides(v, split)) shared.insert(units_.value(v).source);
    }
  }
  for (ValueId v : shared) out.backward.push_back(elements_of(g_, v));
  return out;
}

// In floating point operations: what a rank does beyond its share of the work, communication and storage.
double TensorSplit::cost(const Classes& split) const {
  const TensorReduces reduces = reduces_of(split);
  constexpr double kShare = 1 - 1 / kNominalSplit;
  double total = 0;
  for (double e : reduces.forward) total += e * flops_per_reduced_element_;
  for (double e : reduces.backward) total += e * flops_per_reduced_element_;
  for (const UnitNode& use : nodes_) {
    if (use.node->op->work != WorkKind::kMemory && !divides(use, split)) total += 3 * use.flops * kShare;
  }
  const GraphUnits::Unit& unit = units_.units[unit_];
  for (const std::vector<ValueId>* weights : {&unit.parameters, &unit.frozen}) {
    for (ValueId p : *weights) {
      if (!divides(p, split)) total += elements_of(g_, p) * kShare * kParameterFlops * samples_;
    }
  }
  return total;
}

}  // namespace partita
