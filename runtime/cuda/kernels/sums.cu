// Sums whose order is a balanced binary tree, or follows from the shape alone.
#include "runtime/cuda/kernels/device.h"
#include "runtime/cuda/kernels/element.h"

namespace {

// Over rows, neighbours first, which are used up.
template <typename T>
__device__ void tree_sum(T* rows, int64_t stride, int count_of_rows, T* sum, int64_t count) {
  for (int64_t i = first_item(); i < count; i += item_step()) {
    for (int64_t step = 1; step < count_of_rows; step *= 2) {
      for (int64_t r = 0; r + step < count_of_rows; r += 2 * step)
        rows[r * stride + i] = rows[r * stride + i] + rows[(r + step) * stride + i];
    }
    sum[i] = rows[i];
  }
}

// The host's (runtime/kernels/accumulate_tree.cc). `number`: of the term among a step's `terms`; a counter in the GPU's
// memory, as launches are captured and repeated.
template <typename T>
__device__ void accumulate_tree(const T* lowest, const T* term, T* sum, T* between, int64_t count, int64_t terms,
                                const int64_t* number) {
  const int64_t n = *number;
  int joined = 0;
  while ((n >> joined) % 2 == 1) ++joined;
  T* to = joined == 0 || n + 1 == terms ? sum : between + (joined - 1) * count;
  for (int64_t i = first_item(); i < count; i += item_step()) {
    T total = term[i];
    for (int k = 0; k < joined; ++k) total = (k == 0 ? lowest[i] : between[(k - 1) * count + i]) + total;
    to[i] = total;
  }
}

// Rows of `block` elements, cut into pieces: a block of threads, a power of two and 256 at most, adds up the squares of
// one.
template <typename T>
__device__ void block_squares(const T* x, double* pieces, int64_t rows, int64_t block, int64_t piece) {
  __shared__ double parts[256];
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int64_t each = (block + piece - 1) / piece;
  for (int64_t p = blockIdx.x; p < rows * each; p += gridDim.x) {
    const int64_t begin = p % each * piece;
    const int64_t length = begin + piece < block ? piece : block - begin;
    const T* from = x + p / each * block + begin;
    double sum = 0;
    for (int64_t i = thread; i < length; i += threads) {
      const double v = static_cast<double>(wide(from[i]));
      sum += v * v;
    }
    parts[thread] = sum;
    __syncthreads();
    for (int width = threads / 2; width > 0; width /= 2) {
      if (thread < width) parts[thread] += parts[thread + width];
      __syncthreads();
    }
    if (thread == 0) pieces[p] = parts[0];
    __syncthreads();
  }
}

}  // namespace

#define PARTITA_TREES(T, NAME)                                                                                         \
  KERNEL void tree_sum_##NAME(T* rows, int64_t stride, int count_of_rows, T* sum, int64_t count) {                     \
    tree_sum(rows, stride, count_of_rows, sum, count);                                                                 \
  }                                                                                                                    \
  KERNEL void accumulate_tree_##NAME(const T* lowest, const T* term, T* sum, T* between, int64_t count, int64_t terms, \
                                     const int64_t* number) {                                                          \
    accumulate_tree(lowest, term, sum, between, count, terms, number);                                                 \
  }
PARTITA_TREES(float, f32)
PARTITA_TREES(double, f64)
#undef PARTITA_TREES

#define PARTITA_SQUARES(T, NAME)                                                                             \
  KERNEL void block_squares_##NAME(const T* x, double* pieces, int64_t rows, int64_t block, int64_t piece) { \
    block_squares(x, pieces, rows, block, piece);                                                            \
  }
PARTITA_SQUARES(DeviceBf16, bf16)
PARTITA_SQUARES(DeviceF16, f16)
PARTITA_SQUARES(float, f32)
PARTITA_SQUARES(double, f64)
#undef PARTITA_SQUARES

// The next term of accumulate_tree: one thread, after it.
KERNEL void next_term(int64_t* number, int64_t terms) { *number = *number + 1 == terms ? 0 : *number + 1; }

// Of each of so many blocks, `before` times `each` pieces in their order.
KERNEL void add_pieces(const double* pieces, double* y, int64_t before, int64_t blocks, int64_t each) {
  for (int64_t b = first_item(); b < blocks; b += item_step()) {
    double sum = 0;
    for (int64_t r = 0; r < before; ++r) {
      for (int64_t p = 0; p < each; ++p) sum += pieces[(r * blocks + b) * each + p];
    }
    y[b] = sum;
  }
}
