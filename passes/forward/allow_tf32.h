// Marks the f32 products of a graph that may be multiplied in tf32 (attribute `tf32`), where the recipe's `precision`
// says tf32; nothing for others. A device without tf32 takes no notice of the mark.
#pragma once

#include "absl/status/statusor.h"
#include "passes/rewrite/pass.h"

namespace partita {

absl::StatusOr<Graph> allow_tf32(const Graph& graph, const PassContext& context);

}  // namespace partita
