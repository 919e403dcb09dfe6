// Spells out products of fp8 numbers, once their gradients are there: roundings and a product in bf16 that is marked.
#pragma once

#include "absl/status/statusor.h"
#include "passes/rewrite/pass.h"

namespace partita {

//   y = fp8_matmul(x, w)   ->   y = matmul(round_to_fp8(x), round_to_fp8(w), fp8=128)
//
// What several products of a segment round alike is rounded once. Backward rounds a weight again, in place of keeping
// what forward made of it. Any graph; nothing where there is no such product.
absl::StatusOr<Graph> expand_fp8(const Graph& graph, const PassContext& context);

}  // namespace partita
