// Products of a few rows by a transposed matrix: a small batch through a linear layer.
#pragma once

#include "runtime/kernels/matmul_plan.h"

namespace partita::runtime {

// Whether it is one f32 product of 16 or 32 rows by a transposed matrix, and no more than the product.
bool is_thin(const MatmulPlan& plan, DType dtype);

// The result has the same bits for any number of threads.
Kernel make_thin_matmul(const KernelRequest& r, const MatmulPlan& plan);

}  // namespace partita::runtime
