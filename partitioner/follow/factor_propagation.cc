#include "partitioner/follow/factor_propagation.h"

#include <algorithm>
#include <deque>
#include <set>

#include "ir/mesh/factor_split.h"

namespace partita {
namespace {

constexpr int kMostVisits = 4;  // of one node: its formula is cut finer each time

// The forward part, and the prologue's copies of weights that it reads.
bool is_propagated(const Node& node) { return node.segment <= Segment::kForward; }

}  // namespace

struct FactorPropagation::Walk {
  Mesh mesh;
  std::map<ValueId, Sharding> values;
  std::deque<NodeId> queue;
  std::map<NodeId, int> visits;
  std::set<NodeId> queued;
  std::set<ValueId> partial;  // values of which a sum over the ranks is counted already, the value's or its gradient's
};

FactorPropagation::FactorPropagation(const Graph& graph)
    : graph_(graph),
      uses_(graph.values.size()),
      formulas_(graph.nodes.size()),
      state_of_(graph.values.size(), -1),
      is_data_(graph.values.size(), false),
      dependence_(graph) {
  for (size_t k = 0; k < graph.states.size(); ++k) state_of_[graph.states[k].value] = static_cast<int>(k);
  for (const GraphInput& in : graph.inputs) is_data_[in.value] = in.kind == InputKind::kData;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    const Node& node = graph.nodes[n];
    if (!is_propagated(node)) continue;
    forward_.push_back(static_cast<NodeId>(n));
    // A weight's copy in another type.
    if ((node.segment == Segment::kPrologue && node.inputs.size() == 1) || node.op->name == "round_to_fp8")
      state_of_[node.outputs[0]] = state_of_[node.inputs[0]];
    for (ValueId v : node.inputs) {
      if (v == kNoValue) continue;
      if (uses_[v].empty() || uses_[v].back() != static_cast<NodeId>(n)) uses_[v].push_back(static_cast<NodeId>(n));
    }
  }
}

double FactorPropagation::flops(NodeId n) const {
  const Node& node = graph_.nodes[n];
  std::vector<TensorType> types = input_types(graph_, node);
  return use_flops(*node.op, {node.attrs, types}, formula(n));
}

const Formula& FactorPropagation::formula(NodeId n) const {
  if (!formulas_[n]) {
    formulas_[n] = bound_formula(graph_, graph_.nodes[n]);
  }
  return *formulas_[n];
}

namespace {

// A node's operands, inputs that are there and then outputs, as its formula lists them.
struct Operands {
  std::vector<ValueId> values;
  size_t inputs = 0;

  explicit Operands(const Node& node) {
    for (ValueId v : node.inputs) {
      if (v != kNoValue) values.push_back(v);
    }
    inputs = values.size();
    values.insert(values.end(), node.outputs.begin(), node.outputs.end());
  }
};

// The node's formula, cut to the pieces of what is split, and the factor that is split; -1 where there is none, or not
// one that all agree on.
struct SplitUse {
  const Formula& whole;
  std::optional<Formula> cut;  // where a piece starts within a factor: seldom
  int factor = -1;
  std::vector<size_t> lost;  // operands whose split the factor is not

  const Formula& formula() const { return cut ? *cut : whole; }
};

SplitUse split_use(const Formula& formula, const Operands& operands, const std::map<ValueId, Sharding>& values,
                   const Mesh& mesh) {
  SplitUse out{formula, std::nullopt, -1, {}};
  auto sharding = [&](size_t k) -> const Sharding* {
    auto at = values.find(operands.values[k]);
    return at == values.end() ? nullptr : &at->second;
  };
  for (size_t k = 0; k < operands.values.size(); ++k) {
    const bool output = k >= operands.inputs;
    const size_t operand = output ? k - operands.inputs : k;
    const Sharding* s = sharding(k);
    if (s == nullptr || is_refined(out.formula(), output, operand, *s, mesh)) continue;
    if (!out.cut) out.cut = formula;
    refine(*out.cut, output, operand, *s, mesh);
  }
  std::vector<int> found(operands.values.size(), -1);
  for (size_t k = 0; k < operands.values.size(); ++k) {
    const Sharding* s = sharding(k);
    if (s == nullptr) continue;
    bool output = k >= operands.inputs;
    const FormulaOperand& o = output ? out.formula().outputs[k - operands.inputs] : out.formula().inputs[k];
    auto asked = proposals(out.formula(), o, *s, mesh);
    // An output cannot ask for a reduced factor; what an input asks for goes first.
    if (!asked.empty()) found[k] = asked.front().first;
    if (out.factor < 0) out.factor = found[k];
  }
  for (size_t k = 0; k < operands.values.size(); ++k) {
    if (sharding(k) != nullptr && (found[k] != out.factor || out.factor < 0)) out.lost.push_back(k);
  }
  return out;
}

Sharding along(const Formula& formula, const FormulaOperand& operand, int factor) {
  FactorSplit split;
  split.axes.resize(formula.factors.size());
  split.axes[factor] = {0};
  return operand_sharding(formula, operand, split);
}

}  // namespace

void FactorPropagation::visit(Walk& walk, NodeId n) const {
  const Node& node = graph_.nodes[n];
  Operands operands(node);
  SplitUse f = split_use(formula(n), operands, walk.values, walk.mesh);
  if (f.factor < 0) return;
  for (size_t k = 0; k < operands.values.size(); ++k) {
    bool output = k >= operands.inputs;
    const FormulaOperand& o = output ? f.formula().outputs[k - operands.inputs] : f.formula().inputs[k];
    ValueId v = operands.values[k];
    if (!has_factor(o, f.factor) || walk.values.count(v)) continue;
    walk.values.emplace(v, along(f.formula(), o, f.factor));
    auto enqueue = [&](NodeId other) {
      if (!is_propagated(graph_.nodes[other]) || walk.visits[other] >= kMostVisits) return;
      if (walk.queued.insert(other).second) {
        ++walk.visits[other];
        walk.queue.push_back(other);
      }
    };
    if (graph_.values[v].producer != kNoNode) enqueue(graph_.values[v].producer);
    for (NodeId other : uses_[v]) enqueue(other);
  }
}

PropagatedFactor FactorPropagation::propagate(ValueId value, const Sharding& seed, int64_t n) const {
  Walk walk;
  walk.mesh.axes = {{"split", n}};
  walk.values.emplace(value, normalized(seed));
  if (graph_.values[value].producer != kNoNode) walk.queue.push_back(graph_.values[value].producer);
  for (NodeId other : uses_[value]) walk.queue.push_back(other);
  walk.queued.insert(walk.queue.begin(), walk.queue.end());
  while (!walk.queue.empty()) {
    NodeId next = walk.queue.front();
    walk.queue.pop_front();
    walk.queued.erase(next);
    visit(walk, next);
  }
  PropagatedFactor out;
  std::set<NodeId> touched;
  for (const auto& [v, s] : walk.values) {
    NodeId producer = graph_.values[v].producer;
    if (producer != kNoNode && is_propagated(graph_.nodes[producer])) touched.insert(producer);
    touched.insert(uses_[v].begin(), uses_[v].end());
    if (producer == kNoNode && is_weight(v)) out.parameter_elements += elements(graph_.type(v).shape);
  }
  for (NodeId node : touched) account(walk, node, out);
  out.moved_bytes += out.gathered_bytes;
  out.values = std::move(walk.values);
  return out;
}

// A frozen weight takes as much memory and work as a trained one.
bool FactorPropagation::is_weight(ValueId v) const {
  if (state_of_[v] < 0) return false;
  return partita::is_weight(graph_, graph_.states[static_cast<size_t>(state_of_[v])]);
}

// Bytes of a value's gradient; 0 where it has none.
double FactorPropagation::gradient_bytes(ValueId v) const {
  return dependence_.has_gradient(v) ? static_cast<double>(byte_size(graph_.type(v))) : 0;
}

void FactorPropagation::account(Walk& walk, NodeId n, PropagatedFactor& out) const {
  const Node& node = graph_.nodes[n];
  Operands operands(node);
  SplitUse f = split_use(formula(n), operands, walk.values, walk.mesh);
  // What is split and cannot be followed is gathered here (its gradient, sliced; or the other way round).
  for (size_t k : f.lost) out.gathered_bytes += gradient_bytes(operands.values[k]);
  if (f.factor < 0) return;
  out.nodes.push_back(n);
  out.flops += flops(n);
  bool parameter = false, everywhere = true;
  bool of_parameter = false, of_activation = false, in_result = false, data = false;
  for (size_t k = 0; k < operands.values.size(); ++k) {
    ValueId v = operands.values[k];
    bool output = k >= operands.inputs;
    const FormulaOperand& o = output ? f.formula().outputs[k - operands.inputs] : f.formula().inputs[k];
    bool stands = has_factor(o, f.factor);
    parameter = parameter || (is_weight(v) && stands);
    of_parameter |= !output && stands && dependence_.is_parameter_alone(v);
    of_activation |= !output && stands && dependence_.on_data(v);
    in_result |= output && stands;
    data |= !output && dependence_.on_data(v);
    everywhere = everywhere && (stands || !is_float(graph_.type(v).dtype));
    // A result that lacks the factor is a partial sum; so is the gradient of an operand that lacks it. The gradients
    // of one value are added before they are summed over the ranks.
    if (!stands && walk.partial.insert(v).second) out.moved_bytes += 2 * gradient_bytes(v);
  }
  if (of_parameter && data && !of_activation && in_result) out.openings.push_back(n);
  if (of_parameter && of_activation && !in_result) out.closings.push_back(n);
  bool reduced = f.formula().factors[f.factor].role != FactorRole::kParallel;
  bool product = operands.inputs >= 2 && std::any_of(f.formula().factors.begin(), f.formula().factors.end(),
                                                     [](const Factor& x) { return x.role == FactorRole::kSum; });
  out.sums_parameters = out.sums_parameters || (reduced && parameter && product);
  out.batches_parameters = out.batches_parameters || (everywhere && parameter && product);
}

}  // namespace partita
