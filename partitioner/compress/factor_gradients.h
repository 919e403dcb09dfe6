// `compress: powersgd`: gradients travel as products of two narrow matrices (PowerSGD: Vogels et al., NeurIPS 2019,
// algorithm 1), with error feedback and warm start, as in torch.distributed's powerSGD_hook.
//
// On each rank, with term g and remainder e (a state of the rank's own, zero at first), M = g + e as a matrix [n, m] of
// the first dimension and all others, and Q [m, r] (a state, random at first), the same on all ranks of the sum:
//   P = orthonormal columns of (sum over ranks of M Q)      Q' = sum over ranks of M^T P
//   sum of the gradients = P Q'^T                           e' = M - P (M^T P)^T,  Q = Q' orthonormalized
// Of a gradient that ZeRO scatters, M has the ranks' parts one below the other, and a rank multiplies its rows of P.
#pragma once

#include "partitioner/compress/compress_gradients.h"

namespace partita {

// Rewrites the sums over some of `axes`, of matrices for which the factors of `rank` columns have at most half of the
// elements. Others stay as they are, and so does a scatter that another sum follows. Factors of up to the group's
// `sizes` of gradients are summed at a time.
CompressedGradients factor_gradients(LocalProgram& program, const std::vector<int>& axes, int64_t rank,
                                     const BucketSizes& sizes);

}  // namespace partita
