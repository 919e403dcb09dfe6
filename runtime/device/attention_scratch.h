// Device memory that cuDNN takes for a gradient of attention that it adds up in one order: a matrix of scores.
#pragma once

#include <cstdint>

#include "runtime/program/program.h"

namespace partita::runtime {

// What a gradient's scores get at most; one that needs more goes in parts, one after the other in the same memory.
inline constexpr int64_t kMostScoreBytes = int64_t{2} << 30;

// The least number of equal parts above `more_than` whose scores, `bytes` in all, take kMostScoreBytes at most: parts
// of `batch` samples, then of the `kv_heads` of one sample. 0: there is none.
int64_t score_parts(int64_t batch, int64_t kv_heads, int64_t bytes, int64_t more_than = 0);

// Bytes of the largest gradient of a program, for GPUs of sm_80 and sm_90 (docs/cuda.md): what all of its steps share.
// 0 where none goes through cuDNN.
int64_t score_scratch_bytes(const Program& program);

}  // namespace partita::runtime
