// What every graph must keep, as a table of rules; passes are followed by it.
#pragma once

#include "absl/status/status.h"
#include "ir/graph/graph.h"

namespace partita {

// How far a graph has come. Later phases allow more.
enum class Phase {
  kImported,  // one forward (and evaluation) program: no backward, reduce or update, no optimizer state
  kTraining,  // all segments, on one device
  kRank,      // one rank's program: collectives and coordinates
};

// OK, or Internal "RULE: NODE OR STATE: what is wrong" for the first rule of the table that is broken: an unsound graph
// is a compiler bug.
absl::Status verify(const Graph& graph, Phase phase);

}  // namespace partita
