// Tokens that are sent to experts by products with one-hot tensors (GShard, Switch).
#pragma once

#include "passes/rewrite/pass.h"

namespace partita {

// combine[s, e, c], the sum over a token's choices of
//
//   weight[s] * one_hot(expert[s])[e] * one_hot(place[s])[c]
//
// and products with it, [s, (e c)] times the experts' results, or with Cast(combine > 0), [(e c), s] times the tokens,
// become the ops combine and dispatch, once it is found which token has each place. The tensor, as large as the tokens
// times all places of all experts, is not made, nor multiplied by. Places have to be counted by running sums
// over tokens, after all tokens of earlier choices, so that no two have one. A token of weight 0 gets no place. What
// else reads combine keeps it.
absl::StatusOr<Graph> recognize_dispatch(const Graph& graph, const PassContext& context);

}  // namespace partita
