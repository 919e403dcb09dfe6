// A model with each run of equal blocks folded into one, for analyses whose answer is the same for every block: what
// read the last of a run reads the first. The folded graph computes something else than the model.
#pragma once

#include <vector>

#include "ir/graph/graph.h"

namespace partita {

struct FoldedGraph {
  Graph graph;                   // states that only folded blocks read are gone
  std::vector<int64_t> repeats;  // per block number of `graph`: how many blocks it stands for; 0 for one that is gone
};

// Works on a forward graph whose blocks are tagged. Two blocks are equal where their nodes are, in order: op,
// attributes, output types, and which node of the block feeds which.
FoldedGraph fold_blocks(const Graph& forward);

}  // namespace partita
