// What products of matrices share (ir/ops/matmul.cc).
#pragma once

#include <string>
#include <vector>

#include "ir/graph/builder.h"

namespace partita {

// Operands of one element type and rank >= 2, attributes transpose_a, transpose_b -> the product's type.
absl::StatusOr<std::vector<TensorType>> matmul_types(const OpView& use);
// "~ a b m k+, ~ a b k+ n -> a b m n", with the last two exchanged where transposed; '*' for a broadcast batch
// dimension.
std::string matmul_formula(const OpView& use);
// [batch…, m, k] -> [1…, batch m, k].
ValueId fold_batch(Builder& b, ValueId v);

}  // namespace partita
