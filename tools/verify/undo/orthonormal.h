// What is proved by trying it: that a part of a graph orthonormalizes.
#pragma once

#include "ir/graph/graph.h"

namespace partita::verifier {

// Whether `basis` [n, r] is computed from `columns` [n, r] (and `otherwise`, which it is where they are zero) alone,
// without communication, and its columns are orthonormal and span those of `columns`: for random numbers of common and
// of small size, to rounding in double precision.
bool is_basis(const Graph& graph, ValueId basis, ValueId columns, ValueId otherwise = kNoValue);

}  // namespace partita::verifier
