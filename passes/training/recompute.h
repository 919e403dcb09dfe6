// Activation recomputation (Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016), block by block.
#pragma once

#include "absl/status/statusor.h"
#include "passes/rewrite/pass.h"

namespace partita {

// Backward nodes of a repeated block read copies of the block's forward values, made again in the backward segment from
// what is kept: under `full`, the values that enter the block; under `selective`, also the results of kernels (matrix
// products, attention, convolutions) and of reductions. Nothing for none and auto. What the copies compute is what the
// forward part computes, random numbers included, which depend on the step and the element alone.
absl::StatusOr<Graph> recompute(const Graph& graph, const PassContext& context);

}  // namespace partita
