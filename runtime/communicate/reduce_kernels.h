// Reduction over ranks in a fixed order, for every element type; used by all host back ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "runtime/communicate/collective.h"

namespace partita::runtime {

// Whether reduce_in_order() knows the pair. Bool has max and min (or, and), no sum.
bool can_reduce(DType dtype, ReduceOp op);

// output[i] = (sources[0][i] op sources[1][i]) op (sources[2][i] op …), a balanced binary tree whose left branches are
// powers of two, for `count` elements. f16 and bf16 are accumulated in
// f32 and rounded once, to nearest even; integers wrap; max and min return a NaN where there is one. `output` may be
// one of the sources and must not overlap them otherwise. Requires can_reduce() and at least one source.
void reduce_in_order(DType dtype, ReduceOp op, std::span<const std::byte* const> sources, std::byte* output,
                     int64_t count);

}  // namespace partita::runtime
