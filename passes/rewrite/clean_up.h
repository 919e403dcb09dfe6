// Takes out what computes nothing new. Values of states, inputs and outputs keep their meaning and names.
#pragma once

#include "passes/rewrite/pass.h"

namespace partita {

// Nodes (and constants) that no output and no state's next value needs.
absl::StatusOr<Graph> remove_dead_nodes(const Graph& graph, const PassContext& context);

// Equal nodes (op, inputs, attributes) of one segment become one; equal constants too.
absl::StatusOr<Graph> merge_duplicates(const Graph& graph, const PassContext& context);

// x + 0, x * 1, reshape of reshape, transpose of transpose, cast of cast to the same type, matmul of a transposed
// operand, a sum of parts that lie one after the other, what is moved after it was widened, …
absl::StatusOr<Graph> simplify(const Graph& graph, const PassContext& context);

}  // namespace partita
