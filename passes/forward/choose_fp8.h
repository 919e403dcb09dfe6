// Which products of a forward graph in bf16 multiply fp8 numbers, where the recipe's `precision` says fp8; nothing for
// others.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "ir/graph/fp8_product.h"
#include "passes/rewrite/pass.h"

namespace partita {

// By NodeId of any graph that has a forward part, of which the others take no notice: which products the pass below
// would choose.
std::vector<Fp8Product> fp8_products(const Graph& graph, const Fp8Recipe& recipe);

// Products of data with a weight become `fp8_matmul` (ir/ops/fp8_matmul.cc), but for: the first layers (whose data no
// weight has touched), the last ones (after which no weight is multiplied with: the head), weights that `fp8.keep`
// matches or whose sides are no multiples of `fp8.block`. The weight's gradient is a product of fp8 numbers too where a
// sample's rows, which it sums over, are a multiple of the block. InvalidArgument where no product is left.
absl::StatusOr<Graph> choose_fp8(const Graph& graph, const PassContext& context);

}  // namespace partita
