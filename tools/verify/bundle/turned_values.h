// Values that a program has with their channels last.
#pragma once

#include <vector>

#include "ir/graph/graph.h"
#include "runtime/program/claim.h"

namespace partita::verifier {

// `code`, a rank's graph with composites expanded, and, where claims name values with their channels last, those as
// transpositions of its values: as each one's number plus the graph's number of values says. What follows of them is
// proved as of any other value. `from`: per node, the one of the rank's graph that it comes from.
Graph with_turned_values(Graph code, const std::vector<Claim>& claims, std::vector<NodeId>& from);

// Per value, the one that is it with its channels last; kNoValue: there is none.
std::vector<ValueId> turned_values(const Graph& code);

}  // namespace partita::verifier
