// Gradients of gathered rows go straight into the sum that they are terms of.
#pragma once

#include <vector>

#include "ir/graph/graph.h"

namespace partita {

// The gradient of a gather has a row for each that there is to be looked up, and all but the few that were are zero.
// Where it is one term of a sum alone, the kernel adds those few to the other term, and there is neither a tensor of
// zeros nor a sweep over all rows (an embedding whose rows are the head's weights as well, or micro-batches):
//
//   rows = gather_grad(g, ids);  sum = add(head, rows)     sum = gather_grad(g, ids, head), epilogue "accumulate"
//
// Rows that were looked up are added one after the other, in their order.
struct AddedRows {
  Graph graph;
  std::vector<ValueId> same_as;  // for each of its values, the value of the given graph that it equals
};
AddedRows add_rows(const Graph& graph);

}  // namespace partita
