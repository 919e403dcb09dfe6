// Joins all-reduces of gradients into buckets: one collective over several values, at the place of the last. Fewer,
// larger messages, still started while backward runs.
#pragma once

#include "ir/graph.h"

namespace partita {

// Only all-reduces whose results are first read in a later segment are joined; neighbours in order, of one group, kind
// and type, up to `bytes` together.
Graph bucket_reductions(const Graph& graph, int64_t bytes);

}  // namespace partita
