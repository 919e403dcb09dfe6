// C = A B^T for few rows of A, as C^T = B A^T: to turn A costs little, where a product that wants B's rows as columns
// has to copy all of B for a few uses of each number. B's rows are read where they lie, a dozen at a time, each element
// for all rows of A at once, which lie side by side in vectors. A thread turns A for itself, piece by piece as it goes
// along its first rows: a piece stays in the first-level cache, and nobody waits for another's half.
//   for each block of a thread's rows of B, for each piece of the inner dimension:
//     A^T[piece] = A[:, piece] turned, in the first block
//     C^T[block] += B[block, piece] A^T[piece]
//   C[:, block] = C^T[block] turned
#include "runtime/kernels/thin_matmul.h"

#include <omp.h>

#include "runtime/kernels/tile_ops.h"
#include "runtime/kernels/transpose.h"

namespace partita::runtime {
namespace {

// Rows of A: one vector, or the two that a tile takes.
constexpr int64_t kLanes = 16, kMost = 32;
// Elements of A turned: they stay in the second-level cache beside what passes through of B.
constexpr int64_t kMostTurned = 1 << 16;
// B's rows in a block, the inner dimension's elements that are turned at a time.
constexpr int64_t kBlock = 72, kPiece = 112;

}  // namespace

bool is_thin(const MatmulPlan& plan, DType dtype) {
  return dtype == DType::kF32 && plan.batch.empty() && !plan.transpose_a && plan.transpose_b && !plan.bias &&
         !plan.accumulate && plan.activation == Activation::kNone && plan.m % kLanes == 0 && plan.m <= kMost &&
         plan.k > 0 && plan.m * plan.k <= kMostTurned;
}

Kernel make_thin_matmul(const KernelRequest& r, const MatmulPlan& plan) {
  const int64_t most = plan.m * plan.n * plan.k < kWorthThreads ? 1 : r.threads();
  r.scratch()->reserve(most * plan.k * plan.m * static_cast<int64_t>(sizeof(float)));
  return make_kernel(
      [most, m = plan.m, n = plan.n, k = plan.k, memory = r.scratch()](std::span<std::byte* const> buffers) {
        const float *a = as<float>(buffers[0]), *b = as<float>(buffers[1]);
        float* c = as<float>(buffers[2]);
        const auto multiply = [&](int64_t begin, int64_t end, float* turned) {
          alignas(64) float product[kBlock * kMost];
          for (int64_t j = begin; j < end; j += kBlock) {
            const int64_t rows = std::min(kBlock, end - j);
            for (int64_t z = 0; z < k; z += kPiece) {
              const int64_t piece = std::min(kPiece, k - z);
              float* at = turned + z * m;
              if (j == begin) transpose(at, m, a + z, k, m, piece);
              tile_ops<float>().gemm(product, m, b + j * k + z, k, 1, at, m, rows, m, piece, z > 0);
            }
            transpose(c + j, n, product, m, rows, m);
          }
        };
        if (most == 1) return multiply(0, n, as<float>(memory->data()));
#pragma omp parallel
        {
          const int64_t team = omp_get_num_threads(), thread = omp_get_thread_num();
          multiply(n * thread / team, n * (thread + 1) / team, as<float>(memory->data()) + thread * m * k);
        }
      });
}

}  // namespace partita::runtime
