// Products with copies of a stack's matrices become grouped_matmul.
#pragma once

#include "passes/rewrite/pass.h"

namespace partita {

// matmul(x, w[indices]) and matmul(w[indices], x), where w [e,k,n] is gathered along its first dimension by indices
// that are no constant, as experts are in exports that gather everything: each row times the matrix that its index
// chooses, without a copy of it. Through casts, reshapes that keep the matrices, and transpositions of them between the
// gather and the product. Only where the copies take more than w.
absl::StatusOr<Graph> recognize_grouped_matmul(const Graph& graph, const PassContext& context);

}  // namespace partita
