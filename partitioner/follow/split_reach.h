// Where the split of one factor reaches, followed through a forward graph's formulas in both directions.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "ir/graph/dependence.h"
#include "ir/graph/graph.h"
#include "ir/mesh/sharding.h"
#include "ir/op/formula.h"

namespace partita {

struct SplitReach {
  std::map<ValueId, Sharding> values;  // all values that are split, with how
  std::vector<NodeId> openings;  // the factor comes from a parameter alone: into the output of a product, a gather
  std::vector<NodeId> closings;  // the factor is summed between a parameter and an activation
  std::set<NodeId> nodes;        // every node with a split operand or result
};

// Starts at values that are split over axis 0 of `mesh`, which has that axis alone. Factors that an op must keep whole
// end it.
SplitReach propagate_split(const Graph& graph, const Dependence& dependence, const std::map<ValueId, Sharding>& start,
                           const Mesh& mesh);

}  // namespace partita
