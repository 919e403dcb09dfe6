// Products that do what follows them (runtime/kernels/matmul_plan.h): what their operands must be.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/graph/graph.h"

namespace partita::verifier {

// What a product's step reads and writes, found from its first result through the graph: a GELU in its tanh form, the
// sum with a bias along the last dimension, the product; or the gradient of such a GELU; or, beside the product, the
// sum over all rows of one of its operands. Rounding to the product's type in between is no difference.
struct ProductOperands {
  NodeId product = kNoNode;
  std::vector<int> inputs;   // per operand: a value that is no view
  std::vector<int> outputs;  // likewise; the first is the product's own, before it is added to something
  int bias = -1;             // which of the inputs is the bias; -1: none
};
// `result`: what the step says that its first result is (of one that accumulates, before), `sums`: its last. Aborted
// where the graph has no such thing.
absl::StatusOr<ProductOperands> product_operands(const Graph& graph, const std::vector<ValueId>& storage,
                                                 const std::string& epilogue, int result, int sums);

}  // namespace partita::verifier
