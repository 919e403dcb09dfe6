// Gradients of relus by what the relus made, for which a GPU's memory and bandwidth need not hold both.
#pragma once

#include <vector>

#include "ir/graph/graph.h"

namespace partita {

// A relu's gradient looks at the sign of its operand, and the result has the same bits of it:
//
//   y = relu(x);  dx = relu_grad(dy, x)     dx = relu_grad(dy, y)
//
// wherever x would be kept for that alone. What follows the relu reads y, so that x need not be in memory at all.
struct ReluResults {
  Graph graph;
  std::vector<ValueId> same_as;  // for each of its values, the value of the given graph that it equals
};
ReluResults read_relu_results(const Graph& graph);

}  // namespace partita
