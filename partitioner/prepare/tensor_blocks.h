// Sums in a fixed order (train.yaml's reproducible) of what a tensor axis may divide. The serial program itself says in
// which blocks the inner dimension of a product is added up (ir/ops/matmul.cc, attribute `block`): those that the most
// ranks of the axis would have. Fewer ranks have several that follow one another.
#pragma once

#include <cstdint>
#include <functional>

#include "ir/graph/graph.h"
#include "ir/op/formula.h"
#include "partitioner/follow/factor_propagation.h"

namespace partita {

// The graph with that attribute on every product of floats. `blocks` > 1: the most ranks of a tensor axis.
// `sample_parts`: as LayoutChooser has them.
Graph mark_tensor_blocks(const Graph& graph, int64_t blocks, int64_t sample_parts);

// Which factors a tensor axis may divide of a graph that is marked so: what is summed over their parts, forward and
// backward, is products alone, over whole blocks of theirs. The graph must outlive the result.
std::function<bool(const PropagatedFactor&)> keeps_tensor_blocks(const Graph& graph);

// Whether an axis of so many ranks divides the factor of the node's cut formula in whole blocks.
bool divides_blocks(const Node& node, const Formula& cut, int factor, int64_t ways);

}  // namespace partita
