// Activation recomputation (Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016), block by block.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "passes/rewrite/pass.h"

namespace partita {

// Backward nodes of a block read copies of the block's forward values, made again in the backward segment from
// what is kept. Each block has a mode, by the recipe:
//
//   none, auto  all is kept
//   selective   the values that enter the block, and the results of kernels (matrix products, attention, convolutions),
//               of products with their bias, and of reductions
//   attention   all but what leads to attention and its results
//   mlp         what enters, what leads to attention and its results; all else is made again
//   full        the values that enter the block alone
//
// What is kept with offload and full_offload is what none and full keep; where it waits is for the code generator.
// A block without an attention kernel has nothing that leads to one. What the copies compute is what the forward part
// computes, random numbers included, which depend on the step and the element alone. InvalidArgument where the recipe
// has modes for more blocks than there are.
absl::StatusOr<Graph> recompute(const Graph& graph, const PassContext& context);

// The forward nodes that are computed again where all blocks of a training graph have this mode, by NodeId.
std::vector<bool> recomputed_nodes(const Graph& graph, RecomputeMode mode);

}  // namespace partita
