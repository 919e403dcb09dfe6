// Marks the nodes whose kernels would add up in an order that depends on the threads (attribute `ordered`), where the
// recipe's `reproducible` asks for one order; nothing for others.
#pragma once

#include "absl/status/statusor.h"
#include "passes/rewrite/pass.h"

namespace partita {

absl::StatusOr<Graph> fix_order(const Graph& graph, const PassContext& context);

}  // namespace partita
