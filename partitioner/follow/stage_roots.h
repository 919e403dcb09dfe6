// What values of a forward graph are made of: it tells where a pipeline stage can begin.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/graph/graph.h"

namespace partita {

// A forward node needs a stage where it joins data with parameters or is heavy, and so does all that is made of it. The
// rest are masks, tables, transposed weights: made where they are read.
enum MadeOf : uint8_t { kData = 1, kWeight = 2, kStaged = 4 };

// For each value, MadeOf bits; 0 after the forward part.
std::vector<uint8_t> made_of(const Graph& graph);

}  // namespace partita
