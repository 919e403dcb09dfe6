// C = A B^T for few rows of A, as C^T = B A^T: to turn A costs little, where a product that wants B's rows as columns
// has to copy all of B for a few uses of each number. B's rows are read where they lie, a dozen at a time, each element
// for all rows of A at once, which lie side by side in vectors:
//   A^T [k, m] = A turned
//   for each block of B's rows:  C^T [block, m] = B[block] A^T;  C[:, block] = C^T turned
#include "runtime/kernels/thin_matmul.h"

#include "runtime/kernels/tile_ops.h"
#include "runtime/kernels/transpose.h"

namespace partita::runtime {
namespace {

// Rows of A: one vector, or the two that a tile takes.
constexpr int64_t kLanes = 16, kMost = 32;
// Elements of A turned: they stay in the second-level cache beside what passes through of B.
constexpr int64_t kMostTurned = 1 << 16;
// Multiplications (ten microseconds) from which on waiting for the last thread costs less than the others save.
constexpr int64_t kWorthThreads = 1 << 20;
// B's rows in a block, the inner dimension's elements that are turned at a time.
constexpr int64_t kBlock = 24, kPiece = 64;

}  // namespace

bool is_thin(const MatmulPlan& plan, DType dtype) {
  return dtype == DType::kF32 && plan.batch.empty() && !plan.transpose_a && plan.transpose_b && !plan.bias &&
         !plan.accumulate && plan.activation == Activation::kNone && plan.m % kLanes == 0 && plan.m <= kMost &&
         plan.k > 0 && plan.m * plan.k <= kMostTurned;
}

Kernel make_thin_matmul(const KernelRequest& r, const MatmulPlan& plan) {
  r.scratch()->reserve(plan.k * plan.m * static_cast<int64_t>(sizeof(float)));
  return make_kernel([m = plan.m, n = plan.n, k = plan.k, memory = r.scratch()](std::span<std::byte* const> buffers) {
    const float *a = as<float>(buffers[0]), *b = as<float>(buffers[1]);
    float *c = as<float>(buffers[2]), *turned = as<float>(memory->data());
    const auto turn = [&](int64_t z) { transpose(turned + z * m, m, a + z, k, m, std::min(kPiece, k - z)); };
    const auto multiply = [&](int64_t j) {
      alignas(64) float product[kBlock * kMost];
      const int64_t rows = std::min(kBlock, n - j);
      tile_ops<float>().gemm(product, m, b + j * k, k, 1, turned, m, rows, m, k, false);
      transpose(c + j, n, product, m, rows, m);
    };
    if (m * n * k < kWorthThreads) {
      for (int64_t z = 0; z < k; z += kPiece) turn(z);
      for (int64_t j = 0; j < n; j += kBlock) multiply(j);
      return;
    }
#pragma omp parallel
    {
#pragma omp for schedule(static)
      for (int64_t z = 0; z < k; z += kPiece) turn(z);
#pragma omp for schedule(static)
      for (int64_t j = 0; j < n; j += kBlock) multiply(j);
    }
  });
}

}  // namespace partita::runtime
