// One plain product of two matrices as matmul computes it, for kernels that make one of several.
#pragma once

#include "runtime/kernels/matmul_plan.h"

namespace partita::runtime {

// c = a b, or c += a b where the plan accumulates; one matrix by another, nothing else in the epilogue. On at most so
// many threads.
void multiply(const MatmulPlan& plan, int threads, const float* a, const float* b, float* c);
void multiply(const MatmulPlan& plan, int threads, const double* a, const double* b, double* c);

}  // namespace partita::runtime
