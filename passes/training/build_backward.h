// Reverse-mode differentiation: appends the backward segment and, for each trained parameter, an output "grad/NAME" of
// the parameter's type. With several micro-batches the loss and the gradients are accumulated: the mean over
// micro-batches.
//
// InvalidArgument where the loss reaches no trained parameter; Unimplemented, naming the node, where an op on the way
// has no gradient.
#pragma once

#include "passes/rewrite/pass.h"

namespace partita {

absl::StatusOr<Graph> build_backward(const Graph& graph, const PassContext& context);

}  // namespace partita
