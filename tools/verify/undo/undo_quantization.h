// `compress: int8` undone: see undo_compression.h.
#pragma once

#include "tools/verify/undo/undo_compression.h"

namespace partita::verifier {

// What ranks send of a value x: x divided by a scale, rounded and cast to int8, and the scale beside it, which is, for
// each x_p of x's first dimension, the largest |x_p| / 127; what comes back is cast and multiplied by the scale that
// came with it.
// - Exchanged by an all-to-all and added up along the first dimension it is a reduce-scatter of x.
// - That, of a value laid out flat in parts (with zeros at its end), sent on by an all-gather and laid out as before,
//   is an all-reduce of the value.
// Where x is a value and what a state holds of the step before, and the state becomes x less the rounded x, it is the
// remainder of rounding: zero where nothing is rounded.
Uncompressed undo_quantization(const Graph& ranks);

}  // namespace partita::verifier
