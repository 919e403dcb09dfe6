// What of a unit the tensor axis divides, and what it then sums and gathers.
#pragma once

#include <set>
#include <vector>

#include "partitioner/planner/workload/units.h"
#include "partitioner/shard/tensor_split.h"

namespace partita {

// One forward node of a unit.
struct UnitNode {
  const Node* node = nullptr;
  Formula formula;
  std::vector<bool> divided;  // by factor of the formula
  double flops = 0;           // of one run of the graph; 0: bound by memory
};

// Elements of the partial sums, and gathers, over the tensor axis in one run of the graph, each a collective.
struct TensorReduces {
  std::vector<double> forward, backward;
};

class UnitSplit {
 public:
  UnitSplit(const Graph& graph, const GraphUnits& units, size_t unit, const TensorSplit& split);

  const std::vector<UnitNode>& nodes() const { return nodes_; }  // the unit's forward ones, in order
  const std::vector<double>& sizes() const { return sizes_; }    // of the divided factors, as nodes have them
  const TensorReduces& reduces() const { return reduces_; }

  static bool divides(const UnitNode& node);  // any of its factors
  static bool divides(const UnitNode& node, int factor) { return node.divided[static_cast<size_t>(factor)]; }
  bool divides(ValueId v) const { return split_.divides(v); }
  // Whether a divided factor of the value is one of an attention's heads.
  bool has_heads(ValueId v) const;

 private:
  void find_nodes(size_t unit);
  void find_sizes(size_t unit);
  void find_reduces();
  void find_heads();

  const Graph& g_;
  const GraphUnits& units_;
  const TensorSplit& split_;
  std::vector<UnitNode> nodes_;
  std::vector<double> sizes_;
  std::set<size_t> heads_;  // factors
  TensorReduces reduces_;
};

}  // namespace partita
