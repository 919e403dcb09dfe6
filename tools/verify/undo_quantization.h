// `compress: int8` undone: see undo_compression.h.
#pragma once

#include "tools/verify/undo_compression.h"

namespace partita::verifier {

// A value x is divided by a scale, rounded, cast to int8, summed over N ranks by one collective or several, cast back
// and multiplied by the scale, after backward. The scale is the largest |x| of these ranks divided by 127 / N (rounded
// down), so that it is the same on all of them and no sum leaves int8. Where x is a term and what a state holds of the
// step before, and the state becomes x less the rounded x, it is the remainder of rounding: zero where nothing is
// rounded.
Uncompressed undo_quantization(const Graph& ranks);

}  // namespace partita::verifier
