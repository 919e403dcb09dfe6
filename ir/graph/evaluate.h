// The sequential reference executor: an op, or a whole graph node by node, in wide arithmetic (double, int64). For
// tests, constant folding and expansions; slow.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <vector>

#include "ir/graph/graph.h"

namespace partita {

// The reference meaning of an op, through whichever of scalar, evaluate and expand it has.
std::vector<Tensor> evaluate_op(const OpDef& op, const Attrs& attrs, std::span<const Tensor* const> inputs);

// The values `wanted` of one run of all nodes in order. `feeds` gives the inputs and states; a state that is not fed
// has its literal initial value. Only what `wanted` depends on is computed, and a value is dropped after its last use.
// A missing feed is a compiler bug. `made`, where it is given, may change each result of a node before it is read.
std::vector<Tensor> evaluate_graph(const Graph& graph, const std::map<ValueId, Tensor>& feeds,
                                   const std::vector<ValueId>& wanted, const std::function<void(Tensor&)>& made = {});

// The same for the graph's outputs, in order.
std::vector<Tensor> evaluate_graph(const Graph& graph, const std::map<ValueId, Tensor>& feeds);

}  // namespace partita
