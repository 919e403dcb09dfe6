// The graph passes as one visible table: from an imported forward graph to a training program, or to one that
// evaluates.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "ir/pipeline/pass_table.h"
#include "passes/rewrite/pass.h"

namespace partita {

using Pass = TablePass<absl::StatusOr<Graph>(const Graph&, const PassContext&)>;

// Training: clean-up, recognition, loss, blocks, backward, optimizer. Evaluation, of a graph imported for inference:
// the same up to the loss, then what becomes of it. Prediction: without a loss, in the types that the model has.
std::vector<Pass> graph_passes(PassUse use);

}  // namespace partita
