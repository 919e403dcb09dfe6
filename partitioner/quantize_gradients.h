// `compress: int8`: gradients travel as whole numbers, with error feedback.
//
// On each of N ranks, with term g and residual e (a state of the rank's own, zero at first), s shared by all of them:
//   x = g + e     s = max over ranks of |x| / L, L = 127 / N rounded down     q = round(x / s) in int8
//   sum of the gradients = s * (sum over ranks of q)     e' = x - s q
// The sum of q fits int8 and is exact, so that scatters, reductions across nodes after them, and every order of terms
// give the same bits. Adaptive integer rounding as in IntSGD (Mishchenko et al., ICLR 2022), rounded to nearest, with
// the error feedback of Karimireddy et al. (ICML 2019).
#pragma once

#include "partitioner/compress_gradients.h"

namespace partita {

// Rewrites the sums over some of `axes`; those that come one after the other, up to `bucket_bytes` of int8, share one
// reduction of their largest elements. InvalidArgument where a sum is over more than 127 ranks.
absl::StatusOr<CompressedGradients> quantize_gradients(LocalProgram& program, const std::vector<int>& axes,
                                                       int64_t bucket_bytes);

}  // namespace partita
