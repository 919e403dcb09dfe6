// Arithmetic of composites on 16-bit types: statistics, exponentials and sums are kept in f32.
#pragma once

#include "ir/graph/builder.h"

namespace partita {

// f32 for f16 and bf16, else the type itself.
inline DType wide_type(DType t) { return t == DType::kF16 || t == DType::kBF16 ? DType::kF32 : t; }
inline ValueId widen(Builder& b, ValueId v) { return b.cast(v, wide_type(b.dtype(v))); }

}  // namespace partita
