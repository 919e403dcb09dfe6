// `compress: powersgd` undone: see undo_compression.h.
#pragma once

#include "tools/verify/undo/undo_compression.h"

namespace partita::verifier {

// P times the transposed sum over ranks of M^T P, after backward, with P an orthonormal basis (basis.h) of the sum over
// the same ranks of M Q, which they have alike: where P's columns span all, it is the sum of M. Where M is a term and
// what a state holds of the step before, and the state becomes M less P (M^T P)^T, it is what P does not span: zero
// there. Instead of P, the product may have a rank's block of P's rows, of which the sum is that rank's. Q is a state
// that nothing else reads, and becomes a basis of the sum of M^T P.
Uncompressed undo_factorization(const Graph& ranks);

}  // namespace partita::verifier
