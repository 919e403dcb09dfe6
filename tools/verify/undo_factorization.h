// `compress: powersgd` undone: see undo_compression.h.
#pragma once

#include "tools/verify/undo_compression.h"

namespace partita::verifier {

// P times the transposed sum over ranks of M^T P, after backward, with a matrix P that all these ranks have alike,
// since it is made of sums over them alone: where P's columns span all, it is the sum of M. Where M is a term and what
// a state holds of the step before, and the state becomes M less P (M^T P)^T, it is what P does not span: zero there.
// States that nothing else reads are what P begins with.
Uncompressed undo_factorization(const Graph& ranks);

}  // namespace partita::verifier
