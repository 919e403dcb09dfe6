// Products of operands that are packed: each element's sum goes through the inner dimension from its beginning to its
// end, whatever the sizes and the number of threads are.
#pragma once

#include "runtime/kernels/matmul_plan.h"

namespace partita::runtime {

// Whether f32 operands are multiplied faster so than by the BLAS entry: large ones without AVX-512, where that entry
// reads operands where they lie, at half its rate if their rows are a power of two apart. `reproducible`: or whether
// the bits would depend on the number of threads there.
bool is_packed(const MatmulPlan& plan, bool reproducible);

// Of f32 or f64, no more than the product and what it is added to; of an inner dimension that is not empty.
Kernel make_packed_matmul(const KernelRequest& r, const MatmulPlan& plan);

}  // namespace partita::runtime
