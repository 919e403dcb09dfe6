// Dimensions of parameters that a mesh axis does not divide (a vocabulary of 50257) become ones that it does.
#pragma once

#include <functional>
#include <vector>

#include "ir/graph/graph.h"

namespace partita {

struct PaddedGraph {
  Graph graph;
  std::vector<Shape> logical;  // of the states, as they were; empty where nothing is padded
  std::vector<ValueId> now;    // for each value of the old graph, its value in the new one
};

// Makes dimensions of parameters that `parts` does not divide, and that are `wanted` (state, dimension), multiples of
// it, with all that they meet: logits, gradients, optimizer states. What is added to a state is zero before and after
// every step and changes no other number (ir/graph/padding.h); a dimension for which this does not follow from the ops'
// definitions is left as it is. Outputs keep their shapes.
PaddedGraph pad_dimensions(const Graph& graph, int64_t parts, const std::function<bool(const State&, int)>& wanted);

}  // namespace partita
