// Products of numbers that were rounded to fp8, as products of fp8 numbers: for GPUs that multiply such (sm_90).
#pragma once

#include <map>
#include <vector>

#include "ir/graph/fp8_blocks.h"
#include "ir/graph/graph.h"

namespace partita {

// Matmuls with the mark `fp8` whose operands are roundings, perhaps seen under other shapes:
//
//   x' = round_to_fp8(x);  w' = round_to_fp8(w);  y = matmul(x', w') {fp8=128}
//   becomes
//   q = quantize_fp8(x);  p = quantize_fp8(w) {tiles, transpose};  y = multiply_fp8(q, p)
//
// What a product reads are bytes and scales (base/math/quantized.h), the dimension that is summed over last:
// where products sum over rows and over columns of a value, a weight or a gradient, it is quantized in both ways, by
// one step where both are wanted in one pass. Roundings that others read, too, stay; those that nobody reads any more
// go. Products of other forms stay as they are: batches of matrices, dimensions that are no multiples of 16, blocks
// that are not of 128, two operands of e5m2 or in tiles.
struct Fp8Products {
  Graph graph;
  std::vector<ValueId> same_as;  // for each of its values, the value of the given graph that it equals; kNoValue: none
};
// `roundings`: of the graph's values.
Fp8Products multiply_in_fp8(const Graph& graph, const std::map<ValueId, Fp8Rounding>& roundings);

}  // namespace partita
