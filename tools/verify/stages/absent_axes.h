// Sums over stages some of which lack an axis of the mesh: each term counts once along such axes.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "tools/verify/stages/joined_graph.h"

namespace partita::verifier {

// The term of a sum that the first of a stage's ranks along the axes that others lack holds, each of which the others
// leave at zero: all of them would have it.
absl::StatusOr<ValueId> counted_once(const JoinedGraph& graph, ValueId term, size_t stage);

// Terms of a sum over all stages that each of them has summed along axes of its own, before it: the terms that went
// into those sums, counted once along the axes that their stage lacks, and the axes along which the sum is partial
// then.
absl::StatusOr<std::vector<int>> take_off_own_sums(JoinedGraph& graph, std::vector<ValueId>& terms);

}  // namespace partita::verifier
