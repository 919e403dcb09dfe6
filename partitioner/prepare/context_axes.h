// How the context axis finds heads to divide where a contraction must keep positions whole (attention under a causal
// mask): it takes heads there instead (node_split.h, exchange).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "ir/graph/graph.h"
#include "ir/mesh/mesh.h"
#include "ir/mesh/sharding.h"

namespace partita {

// `ranks` in parts that each divide a size of their own, by the order of the sizes: all of them in one where one size
// does. Nothing where that cannot be.
std::optional<std::vector<int64_t>> cut_over(int64_t ranks, const std::vector<int64_t>& sizes);

// Whether the node is a contraction that keeps a factor of its first result whole, and has a form that can split it.
bool keeps_positions(const Graph& graph, const Node& node);

// The sizes that the ranks of mesh axes `context` are cut into, outermost first: cut_over the factors (key heads, the
// query heads of each, samples) of every such node whose first operand `sharding` has them split. Nothing where no cut
// does it for all nodes. `sample_parts`: that the samples of a run are divided into by other axes.
std::optional<std::vector<int64_t>> cut_for_heads(const Graph& graph, const Mesh& mesh, const std::vector<int>& context,
                                                  int64_t sample_parts,
                                                  const std::function<Sharding(ValueId)>& sharding);

}  // namespace partita
