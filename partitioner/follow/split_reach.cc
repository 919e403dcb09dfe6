#include "partitioner/follow/split_reach.h"

#include <algorithm>

#include "ir/mesh/factor_split.h"

namespace partita {
namespace {

class Propagation {
 public:
  Propagation(const Graph& graph, const Dependence& dependence, const Mesh& mesh)
      : g_(graph), dependence_(dependence), mesh_(mesh), readers_(uses(graph)) {}

  SplitReach run(const std::map<ValueId, Sharding>& start) {
    for (const auto& [v, sharding] : start) set(v, normalized(sharding));
    while (!queue_.empty()) {
      ValueId v = queue_.back();
      queue_.pop_back();
      if (NodeId p = g_.values[v].producer; p != kNoNode) visit(p);
      for (NodeId n : readers_[v]) visit(n);
    }
    for (NodeId n : reach_.nodes) classify(n);
    return std::move(reach_);
  }

 private:
  struct Use {
    Formula formula;
    std::vector<ValueId> inputs;  // the present ones
    int factor = -1;              // the one that is split
  };

  void set(ValueId v, Sharding sharding) {
    if (reach_.values.emplace(v, std::move(sharding)).second) queue_.push_back(v);
  }

  // The factor that most operands with a known split ask for.
  Use read(NodeId n) const {
    const Node& node = g_.nodes[n];
    Use use{bound_formula(g_, node), {}, -1};
    std::copy_if(node.inputs.begin(), node.inputs.end(), std::back_inserter(use.inputs),
                 [](ValueId v) { return v != kNoValue; });
    std::map<int, int> votes;
    auto each_known = [&](auto f) {
      for (size_t k = 0; k < use.inputs.size(); ++k) {
        if (auto at = reach_.values.find(use.inputs[k]); at != reach_.values.end()) f(false, k, at->second);
      }
      for (size_t k = 0; k < node.outputs.size(); ++k) {
        if (auto at = reach_.values.find(node.outputs[k]); at != reach_.values.end()) f(true, k, at->second);
      }
    };
    each_known([&](bool output, size_t k, const Sharding& s) { refine(use.formula, output, k, s, mesh_); });
    each_known([&](bool output, size_t k, const Sharding& s) {
      const FormulaOperand& operand = output ? use.formula.outputs[k] : use.formula.inputs[k];
      for (const auto& [factor, axes] : proposals(use.formula, operand, s, mesh_)) ++votes[factor];
    });
    int most = 0;
    for (const auto& [factor, count] : votes) {
      if (count > most) use.factor = factor, most = count;
    }
    return use;
  }

  void visit(NodeId n) {
    const Node& node = g_.nodes[n];
    if (node.segment != Segment::kForward) return;
    Use use = read(n);
    if (use.factor < 0) return;
    reach_.nodes.insert(n);
    FactorSplit split;
    split.axes.resize(use.formula.factors.size());
    split.axes[use.factor] = {0};
    auto spread = [&](ValueId v, const FormulaOperand& operand) {
      Sharding s = operand_sharding(use.formula, operand, split);
      if (s.is_split()) set(v, std::move(s));
    };
    for (size_t k = 0; k < use.inputs.size(); ++k) spread(use.inputs[k], use.formula.inputs[k]);
    for (size_t k = 0; k < node.outputs.size(); ++k) spread(node.outputs[k], use.formula.outputs[k]);
  }

  void classify(NodeId n) {
    Use use = read(n);
    if (use.factor < 0) return;
    bool in_weight = false, in_activation = false, in_output = false, has_data = false;
    for (size_t k = 0; k < use.inputs.size(); ++k) {
      ValueId v = use.inputs[k];
      bool here = has_factor(use.formula.inputs[k], use.factor);
      in_weight |= here && dependence_.is_parameter_alone(v);
      in_activation |= here && dependence_.on_data(v);
      has_data |= dependence_.on_data(v);
    }
    for (const FormulaOperand& out : use.formula.outputs) in_output |= has_factor(out, use.factor);
    if (in_weight && has_data && !in_activation && in_output) reach_.openings.push_back(n);
    if (in_weight && in_activation && !in_output) reach_.closings.push_back(n);
  }

  const Graph& g_;
  const Dependence& dependence_;
  const Mesh& mesh_;
  std::vector<std::vector<NodeId>> readers_;
  std::vector<ValueId> queue_;
  SplitReach reach_;
};

}  // namespace

SplitReach propagate_split(const Graph& graph, const Dependence& dependence, const std::map<ValueId, Sharding>& start,
                           const Mesh& mesh) {
  return Propagation(graph, dependence, mesh).run(start);
}

}  // namespace partita
