// What train.yaml's kernels.attention says: with `math`, attention is a matrix product, softmax, matrix product; with
// `cudnn` and `own` it says whose kernel it is on a GPU, and its gradient after it.
#pragma once

#include "passes/rewrite/pass.h"

namespace partita {

absl::StatusOr<Graph> choose_attention(const Graph& graph, const PassContext& context);

}  // namespace partita
