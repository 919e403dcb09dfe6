// Products of a GPU that do more than multiply: what follows them, where cuBLASLt does it as it writes their result.
#pragma once

#include <vector>

#include "ir/graph/graph.h"

namespace partita {

// Joins to a product of one matrix by another, in bf16, fp16 or f32, by its attribute "epilogue"
// (runtime/kernels/matmul_plan.h):
//
//   u = x @ w;  p = u + b;  h = gelu(p)     h, p = product(x, w, b) {bias+gelu_tanh+aux}    p only where it is read
//   dh = dy @ v;  dp = gelu_grad(dh, p)     dp = product(dy, v, p) {gelu_tanh_grad}
//   dw = x^T @ dy;  db = sum of dy's rows   dw, db = product(x, dy) {sum_b}
//
// Wherever nothing else reads what is no longer there. GELU is cuBLASLt's own, the tanh form; a GELU by erf stays a
// kernel behind the product. A bias in f32 of a 16-bit product is rounded to 16 bits (in a step of its own), and the
// product no longer, before both are added up in f32: as PyTorch's autocast. Sums of a wider type than the product's
// stay as they are. `graph` has no composites any more (expand_composites.h).
struct FusedProducts {
  Graph graph;
  std::vector<ValueId> same_as;  // for each of its values, the value of the given graph that it equals (but for
                                 // rounding); kNoValue: a bias in 16 bits
};
FusedProducts fuse_products(const Graph& graph);

}  // namespace partita
