// What of a unit the tensor axis divides.
#pragma once

#include <set>
#include <vector>

#include "partitioner/planner/workload/factor_classes.h"
#include "partitioner/planner/workload/units.h"

namespace partita {

// One forward node of a unit, with the factors of its formula as classes (FactorClasses).
struct UnitNode {
  const Node* node = nullptr;
  Formula formula;
  std::vector<std::vector<int>> factors;
  double flops = 0;  // of one run of the graph; 0: bound by memory
};

// Elements of the partial sums, and gathers, over the tensor axis in one run of the graph, each a collective.
struct TensorReduces {
  std::vector<double> forward, backward;
};

// Factors are followed through the unit's forward nodes. Classes that stand in parameters and neither enter nor leave
// the unit can be divided; each subset is weighed by the work that it leaves whole and the partial sums that it causes,
// and the best is the split.
class TensorSplit {
 public:
  // `flops_per_reduced_element`: compute rate over link rate. `samples`: of one run of the graph.
  TensorSplit(const Graph& graph, const GraphUnits& units, size_t unit, double flops_per_reduced_element,
              double samples);

  const std::vector<UnitNode>& nodes() const { return nodes_; }  // the unit's forward ones, in order
  std::vector<double> sizes() const;                             // of the divided classes
  const TensorReduces& reduces() const { return reduces_; }

  bool divides(const UnitNode& node) const { return divides(node, split_); }  // any of its factors
  bool divides(const UnitNode& node, int factor) const { return divides(node, factor, split_); }
  bool divides(ValueId v) const { return divides(v, split_); }

 private:
  using Classes = std::set<int>;

  void follow_nodes();
  void follow_parameter(ValueId v);
  std::vector<int> candidates() const;
  std::vector<int> leaves(ValueId v) const;
  bool divides(const UnitNode& node, const Classes& split) const;
  bool divides(const UnitNode& node, int factor, const Classes& split) const;
  bool divides(ValueId v, const Classes& split) const;
  TensorReduces reduces_of(const Classes& split) const;
  double cost(const Classes& split) const;

  const Graph& g_;
  const GraphUnits& units_;
  const size_t unit_;
  const double flops_per_reduced_element_, samples_;
  std::vector<UnitNode> nodes_;
  FactorClasses classes_;
  std::vector<std::vector<std::vector<int>>> dims_;  // by ValueId, then dimension: classes
  Classes split_;
  TensorReduces reduces_;
};

}  // namespace partita
