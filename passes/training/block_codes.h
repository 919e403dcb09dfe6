// Optimizer states in 8 bits, as bitsandbytes keeps them: in blocks of 256 elements that follow each other in memory,
// each element as the code (ops dynamic_code, dynamic_value) of its share of the block's largest absolute value.
#pragma once

#include "ir/graph/builder.h"

namespace partita {

// Whether a state of this shape is kept in codes: it is large enough to be worth it (bitsandbytes' min_8bit_size).
bool has_block_codes(const Shape& shape);
// One number for each block. Where the last dimension is whole blocks, so are its parts: [m, n] has [m, n / 256];
// else [elements / 256], the last block being what is left.
Shape block_scales_shape(const Shape& shape);

// Of a value that has none, the value itself stands for the codes.
struct BlockCodes {
  ValueId codes = kNoValue;   // u8, of the value's shape
  ValueId scales = kNoValue;  // the largest absolute value of each block
};
// `has_sign`: whether values may be negative.
BlockCodes block_codes(Builder& b, ValueId v, bool has_sign);
// What they stand for, in the type of the scales.
ValueId decoded(Builder& b, const BlockCodes& of, bool has_sign);

}  // namespace partita
