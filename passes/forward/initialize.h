// First values for parameters that the model has none for: train.yaml's `init` rules, the first that matches. Drawn
// later by global element index, so every plan starts equal. InvalidArgument where a parameter has neither a value nor
// a rule.
#pragma once

#include "passes/rewrite/pass.h"

namespace partita {

absl::StatusOr<Graph> initialize(const Graph& graph, const PassContext& context);

}  // namespace partita
