// Reverse-mode differentiation: appends the backward segment and, for each trained parameter, an output "grad/NAME" of
// the parameter's type. With several runs of the graph in a step the loss and the gradients are accumulated: the mean
// over the runs, or the sum where the recipe's reduction is that.
//
// InvalidArgument where the loss reaches no trained parameter; Unimplemented, naming the node, where an op on the way
// has no gradient.
#pragma once

#include "passes/rewrite/pass.h"

namespace partita {

absl::StatusOr<Graph> build_backward(const Graph& graph, const PassContext& context);

}  // namespace partita
