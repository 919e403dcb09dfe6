// `compress: int8`: gradients travel as whole numbers, with error feedback.
//
// A value x that goes to ranks in parts x_p (by the first dimension) is rounded, with e (a state of this rank's own,
// zero at first) what the step before left of it, and with a scale for each part:
//   y = x + e     s_p = max |y_p| / 127     q_p = round(y_p / s_p) in int8     e' = y - s q
// A reduce-scatter over N ranks becomes an exchange of q and s, from which each rank adds up its part:
//   sum = sum over ranks of (s_p q_p)
// An all-reduce is that, of the flattened gradient in N shards, and a gather of the shards, rounded in the same way.
// Each rank's share has all 8 bits however many ranks there are, and all ranks have the same sum. As ZeRO++'s quantized
// gradients (Wang et al., 2023), with the error feedback of Karimireddy et al. (ICML 2019) at both roundings.
#pragma once

#include "partitioner/compress/compress_gradients.h"

namespace partita {

// Rewrites the sums over some of `axes`; those that come one after the other, up to the group's `sizes` of int8, travel
// together. Each bucket is added up when the next one is on its way.
CompressedGradients quantize_gradients(LocalProgram& program, const std::vector<int>& axes, const BucketSizes& sizes);

}  // namespace partita
