// Which states are frequencies of rotary positions (`inv_freq`), a buffer of the module that an export keeps among its
// weights.
#pragma once

#include <vector>

#include "ir/graph/graph.h"

namespace partita {

// One flag per state: a vector of floats that is only read by sines and by cosines, of its products with constants and
// with what integers are made of (positions). A layer that takes sines of data, or has a bias inside of them, is not.
std::vector<bool> rotary_frequencies(const Graph& graph);

}  // namespace partita
