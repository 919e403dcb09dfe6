// A product and its bias, which devices compute in one.
#pragma once

#include "ir/graph/dependence.h"
#include "ir/graph/graph.h"

namespace partita {

// Whether `node` adds what depends on no data to the result of a product (of matrices, or a convolution), which may be
// seen in another shape; or rounds such a sum of more bits to the product's.
bool is_biased_product(const Graph& graph, const Dependence& dependence, const Node& node);

}  // namespace partita
