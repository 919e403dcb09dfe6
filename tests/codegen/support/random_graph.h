// Random training-like graphs for property tests: elementwise chains, broadcasting, index functions, reductions, norms,
// products, states.
#pragma once

#include "ir/graph/graph.h"

namespace partita {

Graph random_graph(uint64_t seed, int operations);
// Elementwise ops, softmax, sums and maxima over the rows of one matrix.
Graph random_rows(uint64_t seed, int operations);

}  // namespace partita
