// Queries, keys and values of an attention, seen through what only moves or scales their elements.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "passes/recognize/pattern.h"

namespace partita {

// How to make [b, heads, rows, columns] of a value further up.
struct AttentionOperand {
  ValueId base = kNoValue;
  std::vector<int64_t> permutation;  // of base; empty: none
  bool swap = false;                 // then the last two dimensions change places
  int64_t heads = 0;

  ValueId emit(Rewriter& r, int64_t batch, int64_t rows, int64_t columns) const;
};

// `v` as an operand of a product over [batch, heads] matrices (in rank 3, [batch * heads]). `swap`: its last two
// dimensions are not in the operand's order. Constant factors go into `scale`, unless that is null. Heads repeated for
// grouped queries are seen as they were before. Nothing where the leading dimensions do not fit.
std::optional<AttentionOperand> find_operand(const GraphFacts& facts, ValueId v, int64_t batch, int64_t heads,
                                             bool swap, double* scale);
// The same without a look at where `v` comes from, but for constant factors, which the caller has in its scale already.
AttentionOperand whole_operand(const GraphFacts& facts, ValueId v, int64_t heads, bool swap);

// Keys or values of [b, kv, t, d] before they were repeated to [b, kv g, t, d]: unsqueeze, expand to [b, kv, g, t, d],
// reshape (which `v` is, or what it reshapes).
std::optional<AttentionOperand> before_repeat(const GraphFacts& facts, ValueId v, int64_t batch, int64_t heads);

// The value that `v` is a reshape of.
ValueId before_reshapes(const GraphFacts& facts, ValueId v);
// Whether two shapes end in the same matrix.
bool keeps_matrix(const Shape& a, const Shape& b);

}  // namespace partita
