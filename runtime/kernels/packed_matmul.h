// Products of operands that are packed: each element's sum goes through the inner dimension from its beginning to its
// end, whatever the sizes and the number of threads are.
#pragma once

#include "runtime/kernels/matmul_plan.h"

namespace partita::runtime {

// C [m, n] = A [m, k] B [k, n] (+ C), with distances between elements: of A's and of B's one is 1, rows of C are dense.
struct PackedShape {
  int64_t m = 1, n = 1, k = 1;
  int64_t a_row = 1, a_column = 1, b_row = 1, b_column = 1, c_row = 1;
  bool accumulate = false;
};

// On the calling thread alone, f32 or f64; `scratch` has packed_scratch() bytes.
template <typename T>
void multiply_packed(const PackedShape& p, const T* a, const T* b, T* c, std::byte* scratch);
template <typename T>
int64_t packed_scratch(const PackedShape& p);

// Whether f32 operands are multiplied faster so than by the BLAS entry: large ones without AVX-512, where that entry
// reads operands where they lie, at half its rate if their rows are a power of two apart. `reproducible`: or whether
// the bits would depend on the number of threads there.
bool is_packed(const MatmulPlan& plan, bool reproducible);

// Of f32 or f64, no more than the product and what it is added to; of an inner dimension that is not empty.
Kernel make_packed_matmul(const KernelRequest& r, const MatmulPlan& plan);

}  // namespace partita::runtime
