// What matmul computes, whoever computes it.
//
// Param "epilogue": any of these joined by '+', applied in this order: bias (third input, one value per column),
// accumulate (adds to what the output holds), aux (a second output: what the result is by now), and one of relu,
// gelu_erf, gelu_tanh, gelu_tanh_grad (times gelu_tanh's derivative at the last input, which is like the output). With
// sum_a or sum_b the last output is the sum of that operand over the inner dimension, one value per row or column of
// the result. GPUs alone have aux, gelu_tanh_grad and sums, and they of one matrix by another alone.
#pragma once

#include "runtime/kernels/kernel_request.h"

namespace partita::runtime {

// Multiplications of a product: with fewer (a few microseconds) waiting for the last thread costs more than the others
// save.
inline constexpr int64_t kWorthThreads = 1 << 20;

enum class Activation { kNone, kRelu, kGeluErf, kGeluTanh, kGeluTanhGrad };

// The product as C[batch, m, n] = A[batch, m, k] B[batch, k, n] with as few batch dimensions as it takes; strides in
// elements, 0 where an operand is broadcast.
struct MatmulPlan {
  struct Batch {
    int64_t size, a, b, c;
  };
  // InvalidArgument where the operands do not fit together or the epilogue is unknown.
  static absl::StatusOr<MatmulPlan> make(const KernelRequest& r);

  std::vector<Batch> batch;  // outermost first
  int64_t m = 1, n = 1, k = 1;
  bool transpose_a = false, transpose_b = false;
  bool bias = false, accumulate = false;
  bool aux = false, sum_a = false, sum_b = false;
  Activation activation = Activation::kNone;
  // Param "block": sums in an order that it fixes (ir/ops/matmul.cc). The inner dimension is [groups, blocks, block].
  bool ordered = false;
  int64_t groups = 1, blocks = 1, block = 0;

  // What only GPUs do.
  bool is_extended() const { return aux || sum_a || sum_b || activation == Activation::kGeluTanhGrad; }
  int64_t batches() const {
    int64_t count = 1;
    for (const Batch& dim : batch) count *= dim.size;
    return count;
  }
  int64_t a_row() const { return transpose_a ? 1 : k; }
  int64_t a_column() const { return transpose_a ? m : 1; }
  int64_t b_row() const { return transpose_b ? 1 : n; }
  int64_t b_column() const { return transpose_b ? k : 1; }
  // Element offsets of one matrix of each operand.
  Batch offsets(int64_t index) const {
    Batch at{index, 0, 0, 0};
    for (size_t d = batch.size(); d-- > 0; index /= batch[d].size) {
      const int64_t i = index % batch[d].size;
      at.a += i * batch[d].a;
      at.b += i * batch[d].b;
      at.c += i * batch[d].c;
    }
    return at;
  }
};

}  // namespace partita::runtime
