// How the work of one node is divided over the mesh, given how its operands lie: which axes split which of its factors,
// which partial sums its operands may still be, and where its results go.
#pragma once

#include <optional>
#include <set>
#include <vector>

#include "ir/graph/dependence.h"
#include "ir/graph/graph.h"
#include "ir/mesh/factor_split.h"
#include "partitioner/localize/localize.h"

namespace partita {

// A node with its bound formula, cut to its operands' pieces.
struct NodeUse {
  const Node& node;
  std::vector<size_t> present;  // input positions that are not absent
  Formula formula;
  std::vector<Sharding> shardings;  // of the present inputs, as they are now
};

// An axis that operands have on some factors, and that splits another of the op's instead.
struct Exchange {
  int axis;
  std::set<int> lies;
};

struct NodeSplit {
  FactorSplit factors;
  std::vector<std::vector<int>> passing;  // for each present operand, the partial axes that the op leaves to its result
  std::vector<Exchange> exchanges;
};

// Whether the operand is whole over the axis and another operand of the same sum is still partial over it.
bool joins_partial(const NodeUse& use, const std::vector<std::vector<int>>& passing, size_t operand, int axis);

class NodeSplitter {
 public:
  // `readers`: of each value (ir/graph/graph.h, uses). All must outlive this.
  NodeSplitter(const Graph& graph, const ShardingPlan& plan, const std::vector<std::vector<NodeId>>& readers);

  const Dependence& dependence() const { return dependence_; }

  // layouts: of the present inputs.
  NodeSplit divide(const NodeUse& use, const std::vector<OperandLayouts>& layouts) const;
  // As the operands ask for, and no other way.
  NodeSplit divide_plainly(const NodeUse& use, const std::vector<OperandLayouts>& layouts) const;

  // Whether the value is a constant of zeros, of which nothing is counted twice.
  bool is_zero(ValueId v) const;

  // Where a result that lies as `now` is wanted instead, if anywhere. A sum over an axis which one of the operands had
  // on a factor of the result is scattered back there: the gradient of gathered keys goes to the ranks that hold the
  // keys. After an exchange, a result lies as the operands did. (Both at once, or what one completed would be owed
  // again.)
  std::optional<Sharding> home_of(const NodeUse& use, const NodeSplit& split, size_t output, const Sharding& now) const;

 private:
  struct Home {
    FactorSplit factors;
    std::vector<int> partial;
  };
  bool scatter_home(const NodeUse& use, size_t output, Home& home) const;
  bool exchange_back(const NodeUse& use, const std::vector<Exchange>& exchanges, size_t output, Home& home) const;
  std::vector<Exchange> exchange(const NodeUse& use, const std::vector<OperandLayouts>& layouts,
                                 FactorSplit& split) const;
  void exchange_for_less(const NodeUse& use, const std::vector<OperandLayouts>& layouts, int axis, FactorSplit& split,
                         std::vector<Exchange>& out) const;
  int64_t bytes_exchanged(const NodeUse& use, const std::vector<OperandLayouts>& layouts, const std::set<int>& lies,
                          int axis, int factor) const;
  void share_lookups(const NodeUse& use, FactorSplit& split) const;
  int cheapest_factor(const NodeUse& use, const std::vector<OperandLayouts>& layouts, const FactorSplit& split,
                      int axis, const std::set<size_t>& operands) const;
  std::vector<std::vector<int>> passing_partials(const NodeUse& use, const FactorSplit& split) const;
  bool completed_for_all(const NodeUse& use, size_t operand, int axis) const;
  bool widens(const NodeUse& use, int axis) const;
  bool completes(const Node& node, ValueId v) const;
  bool is_lookup(const NodeUse& use, size_t operand, size_t other) const;
  void scatter_sums(const NodeUse& use, const std::vector<std::vector<int>>& passing, FactorSplit& split) const;
  bool is_nested(const NodeUse& use, size_t operand, int factor, int64_t parts) const;
  ShardingPlan::AxisUse axis_use(const Node& node) const;
  bool is_read_whole(ValueId v, const FormulaOperand& operand, int factor) const;

  const Graph& graph_;
  const ShardingPlan& plan_;
  const Mesh& mesh_;
  const std::vector<std::vector<NodeId>>& readers_;
  std::vector<const Literal*> constants_;  // by value
  const Dependence dependence_;
  std::vector<int> sample_axes_;  // that split inputs
  std::set<int> parameter_axes_;  // that parameters lie along where they are computed with
};

}  // namespace partita
