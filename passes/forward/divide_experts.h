// Products of rows with the matrices that they chose become those of parts of the matrices.
#pragma once

#include "passes/rewrite/pass.h"

namespace partita {

// Each grouped_matmul whose number of matrices `context.expert_parts` divides as one of so many parts, each with rows
// of its own (ir/ops/grouped_matmul.cc), which an axis of experts can split. A row counts in the part that has its
// matrix and is zero in the others, so that the sum over the parts is the product.
//
// Between products with one choice (an expert's two) rows stay in parts: what lies between does the same to each row
// and makes of zeros a number known here, near which it is smooth, so that no gradient of a row that does not count
// becomes infinite. Elsewhere the parts are summed up first.
absl::StatusOr<Graph> divide_experts(const Graph& graph, const PassContext& context);

}  // namespace partita
