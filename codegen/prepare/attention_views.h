// Attention that reads and writes rows where they lie: no copies of queries, keys and values beforehand, none
// of results behind it.
#pragma once

#include <vector>

#include "ir/graph/graph.h"

namespace partita {

// Where rows of q, k, v and the results begin and go on at multiples of 16 bytes:
//
//   x = y @ w;  q, k, v = slices of transpose(reshape(x));  o = attention(q, k, v);  z = transpose(o)
//   becomes
//   z = attention(x, x, x) {q=[…], k=[…], v=[…], out=[…]}
//   dq, dk, dv = attention_grad(…);  dx = concat of what they are transposed
//   becomes
//   dx = attention_grad(…) {dq=[…], dk=[…], dv=[…]}
//
// Each of those four numbers: where the first row lies in its operand, and from there to the next sample, head and row,
// in elements. Operands and results that are no views, or are read in other ways too, stay as they are and have the
// numbers of a dense tensor. `sizes` has batch, heads, key heads, queries, keys, elements of a query and of a value.
// The same arithmetic, to the bit. In f32, and in 16 bits where `narrow` says so: processors widen whole operands of 16
// bits, and would widen what lies beside the rows, too.
struct AttentionViews {
  Graph graph;
  std::vector<ValueId> same_as;  // for each of its values, the value of the given graph that it equals; kNoValue: none
};
AttentionViews view_attention(const Graph& graph, bool narrow);

}  // namespace partita
