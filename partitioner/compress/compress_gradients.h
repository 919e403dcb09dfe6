// Gradients travel in fewer bytes (train.yaml's `compress`): a rewrite of their reductions over the ranks that take
// different samples, in ordinary ops around the collectives. Lossy: the ranks no longer compute the serial program.
#pragma once

#include <vector>

#include "ir/recipe/recipe.h"
#include "partitioner/localize/localize.h"

namespace partita {

struct CompressedGradients {
  int64_t sums = 0;                    // that were rewritten
  int64_t bytes = 0, plain_bytes = 0;  // of their operands on a rank, in a step, now and before
};

// Rewrites every sum of a gradient over some of `axes`. What has one element on a rank, and what is sent from stage to
// stage, stays as it is.
//   bf16: a rank's term is rounded to bf16, and so is the sum. Host back ends add in f32 and round once; NCCL rounds
//         after each rank's term.
//   int8: a rank's term, and what the step before left of it, is rounded to whole multiples of a scale; the remainder
//         is kept for the next step (quantize_gradients.h). `sizes` are summed at a time.
//   powersgd: a rank's term, and what the step before left of it, travels as two factors of 4 columns
//         (factor_gradients.h).
CompressedGradients compress_gradients(LocalProgram& program, Compression kind, const std::vector<int>& axes,
                                       const BucketSizes& sizes);

}  // namespace partita
