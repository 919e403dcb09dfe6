// Which inputs a graph moves by a position itself before it compares them with its predictions: transformers' models
// take labels that are the tokens, and predict labels[i + 1] from position i.
#pragma once

#include <string>
#include <vector>

#include "ir/graph/graph.h"

namespace partita {

// Names of integer data inputs of which a node drops the first element along the last dimension, as labels[..., 1:]
// does; followed through elementwise ops, views, padding and joins. In the order of the graph's inputs.
std::vector<std::string> shifted_inputs(const Graph& graph);

}  // namespace partita
