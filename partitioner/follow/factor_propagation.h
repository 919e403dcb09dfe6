// Propagates one factor through the forward graph: split a value along it and see what else is then split, what is left
// to be summed or gathered, and which work is divided. The classes of values that belong together are what layouts are
// made of: the heads of an attention block with its projections, the hidden features of an MLP, a vocabulary, the
// positions of a sequence.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "ir/graph/dependence.h"
#include "ir/graph/graph.h"
#include "ir/mesh/sharding.h"

namespace partita {

struct PropagatedFactor {
  std::map<ValueId, Sharding> values;  // split n ways along mesh axis 0 of a mesh of its own
  std::vector<NodeId> nodes;           // that work on one part each, ascending
  double flops = 0;                    // of these nodes, before the split
  double moved_bytes = 0;              // summed or gathered between ranks, forward and backward
  double gathered_bytes = 0;           // of these, gathered: what is split cannot be followed through all its readers
  int64_t parameter_elements = 0;      // of weights that are split, trained or frozen
  bool sums_parameters = false;        // a product with a parameter is summed over it
  bool batches_parameters = false;     // it stands in a product's operands and result alike, one a parameter (experts)
  std::vector<NodeId> openings;        // where it comes from a parameter alone into a result: of a product, a gather
  std::vector<NodeId> closings;        // where it is summed between a parameter and an activation
};

class FactorPropagation {
 public:
  explicit FactorPropagation(const Graph& graph);

  // Of the pieces of `seed` that have axis 0, over n ranks. What an op must keep whole ends it.
  PropagatedFactor propagate(ValueId value, const Sharding& seed, int64_t n) const;

  const Formula& formula(NodeId n) const;
  double flops(NodeId n) const;
  const std::vector<NodeId>& forward_nodes() const { return forward_; }
  // The state that a value is, or -1.
  int state_of(ValueId v) const { return state_of_[v]; }
  bool is_data(ValueId v) const { return is_data_[v]; }

 private:
  struct Walk;
  void visit(Walk& walk, NodeId n) const;
  void account(Walk& walk, NodeId n, PropagatedFactor& out) const;
  bool is_weight(ValueId v) const;
  double gradient_bytes(ValueId v) const;

  const Graph& graph_;
  std::vector<NodeId> forward_;
  std::vector<std::vector<NodeId>> uses_;  // forward ones
  mutable std::vector<std::optional<Formula>> formulas_;
  std::vector<int> state_of_;
  std::vector<bool> is_data_;
  const Dependence dependence_;
};

}  // namespace partita
