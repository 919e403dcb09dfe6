// Rotary position embeddings in the spelling of Hugging Face become rotary.
#pragma once

#include "passes/rewrite/pass.h"

namespace partita {

// x cos + concat(-x[r/2:], x[:r/2]) sin for x of rank 4 with r features, where cos and sin repeat their first r/2
// columns in the last r/2: by their values, or because they are made of a concat(f, f) through ops that keep the halves
// alike. concat(such a piece on x[:r], x[r:]) is one rotary of x too. Only where nothing else reads the values between.
absl::StatusOr<Graph> recognize_rotary(const Graph& graph, const PassContext& context);

}  // namespace partita
