// Tokens that are sent to experts by products with one-hot tensors (GShard, Switch).
#pragma once

#include "passes/pass.h"

namespace partita {

// combine[s, e, c], the sum over a token's choices of
//
//   weight[s] * one_hot(expert[s])[e] * one_hot(place[s])[c]
//
// and products with it, [s, (e c)] times the experts' results, or with Cast(combine > 0), [(e c), s] times the tokens,
// become lookups of rows by expert * C + place: gather_rows and gather_rows_grad. The tensor, as large as the tokens
// times all places of all experts, is not made, nor multiplied by. With several choices they have to be columns of one
// TopK, so that a token has no expert twice. What else reads combine keeps it.
absl::StatusOr<Graph> recognize_dispatch(const Graph& graph, const PassContext& context);

}  // namespace partita
