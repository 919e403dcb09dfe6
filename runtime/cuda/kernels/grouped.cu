// Products of rows with the matrices that their indices choose (grouped_matmul) and the gradient of the matrices. Rows are
// put in order of their matrix, and read and written where they lie: nothing is copied but into shared memory.
//
//   rows       a block has 128 rows of one matrix in that order and 128 columns:    y[r] = x[r] w[e]
//   gradients  a block has 128 x 128 elements of one matrix, and all of its rows:   dw[e] = sum of a[r]^T b[r]
//
// (64 for f32 and f64.) How many rows a matrix has is known to the GPU alone, so a launch has a block for each of
// rows / 128 + matrices tiles, and those beyond a matrix's last row end at once. Every result is written by one block, in
// one order of additions.
#include "runtime/cuda/kernels/device.h"
#include "runtime/cuda/kernels/element.h"
#include "runtime/cuda/kernels/warp.h"

namespace {

// Block e writes the rows that take matrix e, in order of their numbers, behind those of lower matrices, and where they
// begin; the last one also where they end. There are `parts` parts with a row for each index; row r takes matrix
// index - first[part] of its own part, or none. first: null for one part.
template <typename I>
__device__ void group_rows(const I* indices, const int64_t* first, int count, int parts, int matrices, int total,
                           int* order, int* begins) {
  __shared__ int own[kGroupedThreads], lower[kGroupedThreads];
  const int t = static_cast<int>(threadIdx.x), e = static_cast<int>(blockIdx.x), rows = count * parts,
            each = matrices / parts;
  const int run = (rows + kGroupedThreads - 1) / kGroupedThreads, begin = min(run * t, rows), end = min(begin + run, rows);
  const auto matrix_of = [&](int r) {
    const int part = r / count;
    const int64_t m = clamp_index(indices[r % count], total) - (first == nullptr ? 0 : first[part]);
    return m < 0 || m >= each ? matrices : part * each + static_cast<int>(m);
  };
  int same = 0, less = 0;
  for (int r = begin; r < end; ++r) {
    const int m = matrix_of(r);
    same += m == e, less += m < e;
  }
  own[t] = same, lower[t] = less;
  __syncthreads();
  if (t == 0) {
    int at = 0;
    for (int k = 0; k < kGroupedThreads; ++k) at += lower[k];
    begins[e] = at;
    for (int k = 0; k < kGroupedThreads; ++k) {
      const int count_of_thread = own[k];
      own[k] = at;
      at += count_of_thread;
    }
    if (e == matrices - 1) begins[matrices] = at;
  }
  __syncthreads();
  int at = own[t];
  for (int r = begin; r < end; ++r) {
    if (matrix_of(r) == e) order[at++] = r;
  }
}

// The rows of a block, as places in the order: those of matrix e have the tiles from begins[e] / kTile + e on.
struct RowTile {
  int matrix = 0, begin = 0, end = 0;  // none: begin >= end

  __device__ RowTile(const int* begins, int matrices, int tile, int size) {
    int past = matrices;  // matrix <= the one that is looked for < past
    while (past - matrix > 1) {
      const int middle = (matrix + past) / 2;
      (begins[middle] / size + middle <= tile ? matrix : past) = middle;
    }
    begin = begins[matrix] + (tile - begins[matrix] / size - matrix) * size;
    end = min(begin + size, begins[matrix + 1]);
  }
};

// ---- 16 bits: tensor cores, tiles of 128 x 128, 32 of the inner dimension at a time ----

constexpr int kTile = grouped_tile(2), kInner = kGroupedInner;
constexpr int kWarpRows = 64, kWarpColumns = 32;  // of the 128 x 128: two warps by four
using TileSum = float[kWarpRows / 16][kWarpColumns / 8][4];

// An operand in shared memory: with the inner dimension last, rows of it for each row (or column) of the result; or the
// other way round.
template <bool kInnerLast>
constexpr int kWidth = kInnerLast ? kInner : kTile;
template <bool kInnerLast>
constexpr int kRowStride = kWidth<kInnerLast> + kGroupedPadding;

// Vectors of eight elements of a tile are dealt to the threads: each has two. The row of this thread's vector i.
constexpr int kVectors = kTile * kInner / 8 / kGroupedThreads;
static_assert(kVectors == 2, "a thread keeps the numbers of two rows");
template <bool kInnerLast>
__device__ int row_of(int i) {
  return (static_cast<int>(threadIdx.x) + i * kGroupedThreads) / (kWidth<kInnerLast> / 8);
}

// Columns from `first` on of rows of `width` elements, row numbers as row_of() tells them; -1: there is none. Zeros in what
// does not exist.
template <bool kInnerLast, typename T>
__device__ void load_tile(T* to, const T* from, const int64_t (&rows)[kVectors], int first, int width) {
  UNROLL
  for (int i = 0; i < kVectors; ++i) {
    const int v = (static_cast<int>(threadIdx.x) + i * kGroupedThreads) % (kWidth<kInnerLast> / 8) * 8, column = first + v;
    T* place = to + row_of<kInnerLast>(i) * kRowStride<kInnerLast> + v;
    const T* row = from + rows[i] * width;
    if (width % 8 == 0) {
      const bool exists = rows[i] >= 0 && column < width;
      copy_async16(place, exists ? row + column : from, exists);
    } else {
      for (int k = 0; k < 8; ++k) place[k] = rows[i] >= 0 && column + k < width ? row[column + k] : narrow<T>(0);
    }
  }
}

// c += a b of two tiles in shared memory, each warp its part.
template <bool kAInnerLast, bool kBInnerLast, typename T>
__device__ void add_tiles(TileSum& c, const T* a, const T* b) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int row = warp / (kTile / kWarpColumns) * kWarpRows, column = warp % (kTile / kWarpColumns) * kWarpColumns;
  UNROLL
  for (int k = 0; k < kInner; k += 16) {
    uint32_t fa[kWarpRows / 16][4];
    UNROLL
    for (int m = 0; m < kWarpRows / 16; ++m) {
      if constexpr (kAInnerLast) {
        ldmatrix_x4(fa[m], a + (row + m * 16 + lane % 16) * kRowStride<true> + k + lane / 16 * 8);
      } else {
        ldmatrix_x4_trans(fa[m], a + (k + lane / 16 * 8 + lane % 8) * kRowStride<false> + row + m * 16 + lane / 8 % 2 * 8);
      }
    }
    UNROLL
    for (int n = 0; n < kWarpColumns / 16; ++n) {
      uint32_t fb[4];
      if constexpr (kBInnerLast) {
        ldmatrix_x4(fb, b + (column + n * 16 + lane / 16 * 8 + lane % 8) * kRowStride<true> + k + lane / 8 % 2 * 8);
      } else {
        ldmatrix_x4_trans(fb, b + (k + lane % 16) * kRowStride<false> + column + n * 16 + lane / 16 * 8);
      }
      UNROLL
      for (int m = 0; m < kWarpRows / 16; ++m) {
        mma_m16n8k16(c[m][n * 2], fa[m], fb[0], fb[1], T{});
        mma_m16n8k16(c[m][n * 2 + 1], fa[m], fb[2], fb[3], T{});
      }
    }
  }
}

// c += the product over `steps` tiles of the inner dimension; load(stage's a, stage's b, step) begins to copy one.
template <bool kAInnerLast, bool kBInnerLast, typename T, typename F>
__device__ void add_product(TileSum& c, int steps, F load) {
  constexpr int kA = (kAInnerLast ? kTile : kInner) * kRowStride<kAInnerLast>,
                kB = (kBInnerLast ? kTile : kInner) * kRowStride<kBInnerLast>;
  T* shared = reinterpret_cast<T*>(launch_shared());
  const auto begin = [&](int step) {
    T* stage = shared + step % kGroupedStages * (kA + kB);
    if (step < steps) load(stage, stage + kA, step);
    commit_copies();
  };
  for (int step = 0; step + 1 < kGroupedStages; ++step) begin(step);
  for (int step = 0; step < steps; ++step) {
    wait_copies<kGroupedStages - 2>();
    __syncthreads();
    begin(step + kGroupedStages - 1);  // where the step before was, which all threads are through with
    const T* stage = shared + step % kGroupedStages * (kA + kB);
    add_tiles<kAInnerLast, kBInnerLast>(c, stage, stage + kA);
  }
  wait_copies<0>();
}

__device__ inline void clear(TileSum& c) {
  UNROLL
  for (int m = 0; m < kWarpRows / 16; ++m) {
    UNROLL
    for (int n = 0; n < kWarpColumns / 8; ++n) c[m][n][0] = c[m][n][1] = c[m][n][2] = c[m][n][3] = 0;
  }
}

// f(row, column, value) for this thread's elements of a tile.
template <typename F>
__device__ void for_elements(const TileSum& c, F f) {
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int row = warp / (kTile / kWarpColumns) * kWarpRows + lane / 4,
            column = warp % (kTile / kWarpColumns) * kWarpColumns + lane % 4 * 2;
  UNROLL
  for (int m = 0; m < kWarpRows / 16; ++m) {
    UNROLL
    for (int n = 0; n < kWarpColumns / 8; ++n) {
      UNROLL
      for (int x = 0; x < 4; ++x) f(row + m * 16 + x / 2 * 8, column + n * 8 + x % 2, c[m][n][x]);
    }
  }
}

template <bool kTransposed, typename T>
__device__ void multiply_rows(const T* x, const T* w, const int* order, const int* begins, T* y, GroupedRows of_x,
                              int matrices, int inner, int columns) {
  const RowTile own(begins, matrices, static_cast<int>(blockIdx.x), kTile);
  if (own.begin >= own.end) return;
  const int first = static_cast<int>(blockIdx.y) * kTile;
  w += int64_t{own.matrix} * inner * columns;
  int64_t rows[kVectors];
  for (int i = 0; i < kVectors; ++i) {
    const int place = own.begin + row_of<true>(i);
    rows[i] = place < own.end ? of_x(order[place]) : -1;
  }
  TileSum c;
  clear(c);
  add_product<true, kTransposed, T>(c, (inner + kInner - 1) / kInner, [&](T* a, T* b, int step) {
    load_tile<true>(a, x, rows, step * kInner, inner);
    int64_t of_w[kVectors];
    for (int i = 0; i < kVectors; ++i) {
      const int row = (kTransposed ? first : step * kInner) + row_of<kTransposed>(i);
      of_w[i] = row < (kTransposed ? columns : inner) ? row : -1;
    }
    if constexpr (kTransposed) {
      load_tile<true>(b, w, of_w, step * kInner, inner);
    } else {
      load_tile<false>(b, w, of_w, first, columns);
    }
  });
  for_elements(c, [&](int row, int column, float value) {
    if (own.begin + row < own.end && first + column < columns)
      y[int64_t{order[own.begin + row]} * columns + first + column] = narrow<T>(value);
  });
}

template <typename T>
__device__ void add_rows(const T* a, const T* b, const int* order, const int* begins, T* dw, GroupedRows of_a,
                         GroupedRows of_b, int inner, int columns) {
  const int e = static_cast<int>(blockIdx.z), begin = begins[e], end = begins[e + 1],
            first_row = static_cast<int>(blockIdx.x) * kTile, first_column = static_cast<int>(blockIdx.y) * kTile;
  // The numbers of the rows that the next step copies are read a step ahead.
  int64_t next[kVectors];
  const auto find_rows = [&](int step) {
    for (int i = 0; i < kVectors; ++i) {
      const int place = begin + step * kInner + row_of<false>(i);
      next[i] = place < end ? order[place] : -1;
    }
  };
  int64_t rows[kVectors];
  const auto of = [&](GroupedRows operand) -> const int64_t(&)[kVectors] {
    for (int i = 0; i < kVectors; ++i) rows[i] = next[i] < 0 ? -1 : operand(static_cast<int>(next[i]));
    return rows;
  };
  find_rows(0);
  TileSum c;
  clear(c);
  add_product<false, false, T>(c, (end - begin + kInner - 1) / kInner, [&](T* to_a, T* to_b, int step) {
    load_tile<false>(to_a, a, of(of_a), first_row, inner);
    load_tile<false>(to_b, b, of(of_b), first_column, columns);
    find_rows(step + 1);
  });
  dw += int64_t{e} * inner * columns;
  for_elements(c, [&](int row, int column, float value) {
    if (first_row + row < inner && first_column + column < columns)
      dw[int64_t{first_row + row} * columns + first_column + column] = narrow<T>(value);
  });
}

// ---- f32 and f64: tiles of 64 x 64, 16 of the inner dimension at a time, 4 x 4 elements a thread ----

constexpr int kWideTile = grouped_tile(4), kWideInner = 16;

// c += the product over `steps` tiles; a(row, k) and b(k, column) read elements of the step's tiles, 0 beyond.
template <typename T, typename A, typename B>
__device__ void add_wide_product(T (&c)[4][4], int inner, A a, B b) {
  __shared__ T left[kWideInner][kWideTile + 1], right[kWideInner][kWideTile + 1];
  const int t = static_cast<int>(threadIdx.x), row = t / 16 * 4, column = t % 16 * 4;
  for (int first = 0; first < inner; first += kWideInner) {
    __syncthreads();
    for (int v = t; v < kWideTile * kWideInner; v += kGroupedThreads) {
      const int k = v % kWideInner, m = v / kWideInner;
      left[k][m] = first + k < inner ? a(m, first + k) : T(0);
      right[v / kWideTile][v % kWideTile] = first + v / kWideTile < inner ? b(first + v / kWideTile, v % kWideTile) : T(0);
    }
    __syncthreads();
    for (int k = 0; k < kWideInner; ++k) {
      UNROLL
      for (int m = 0; m < 4; ++m) {
        UNROLL
        for (int n = 0; n < 4; ++n) c[m][n] += left[k][row + m] * right[k][column + n];
      }
    }
  }
}

template <bool kTransposed, typename T>
__device__ void multiply_wide_rows(const T* x, const T* w, const int* order, const int* begins, T* y, GroupedRows of_x,
                                   int matrices, int inner, int columns) {
  const RowTile own(begins, matrices, static_cast<int>(blockIdx.x), kWideTile);
  if (own.begin >= own.end) return;
  const int first = static_cast<int>(blockIdx.y) * kWideTile, t = static_cast<int>(threadIdx.x);
  w += int64_t{own.matrix} * inner * columns;
  T c[4][4] = {};
  add_wide_product(
      c, inner,
      [&](int m, int k) { return own.begin + m < own.end ? x[int64_t{of_x(order[own.begin + m])} * inner + k] : T(0); },
      [&](int k, int n) {
        if (first + n >= columns) return T(0);
        return kTransposed ? w[int64_t{first + n} * inner + k] : w[int64_t{k} * columns + first + n];
      });
  for (int m = 0; m < 4; ++m) {
    const int place = own.begin + t / 16 * 4 + m;
    for (int n = 0; n < 4 && place < own.end; ++n) {
      const int column = first + t % 16 * 4 + n;
      if (column < columns) y[int64_t{order[place]} * columns + column] = c[m][n];
    }
  }
}

template <typename T>
__device__ void add_wide_rows(const T* a, const T* b, const int* order, const int* begins, T* dw, GroupedRows of_a,
                              GroupedRows of_b, int inner, int columns) {
  const int e = static_cast<int>(blockIdx.z), begin = begins[e], first_row = static_cast<int>(blockIdx.x) * kWideTile,
            first_column = static_cast<int>(blockIdx.y) * kWideTile, t = static_cast<int>(threadIdx.x);
  T c[4][4] = {};
  add_wide_product(
      c, begins[e + 1] - begin,
      [&](int m, int r) {
        return first_row + m < inner ? a[int64_t{of_a(order[begin + r])} * inner + first_row + m] : T(0);
      },
      [&](int r, int n) {
        return first_column + n < columns ? b[int64_t{of_b(order[begin + r])} * columns + first_column + n] : T(0);
      });
  dw += int64_t{e} * inner * columns;
  for (int m = 0; m < 4; ++m) {
    const int row = first_row + t / 16 * 4 + m;
    for (int n = 0; n < 4 && row < inner; ++n) {
      const int column = first_column + t % 16 * 4 + n;
      if (column < columns) dw[int64_t{row} * columns + column] = c[m][n];
    }
  }
}

}  // namespace

KERNEL void group_rows_i32(const int32_t* i, const int64_t* first, int count, int parts, int matrices, int total,
                           int* order, int* begins) {
  group_rows(i, first, count, parts, matrices, total, order, begins);
}
KERNEL void group_rows_i64(const int64_t* i, const int64_t* first, int count, int parts, int matrices, int total,
                           int* order, int* begins) {
  group_rows(i, first, count, parts, matrices, total, order, begins);
}

#define PARTITA_GROUPED(T, NAME, ROWS, GRAD)                                                                          \
  KERNEL void __launch_bounds__(kGroupedThreads, 2)                                                                   \
      grouped_matmul_##NAME(const T* x, const T* w, const int* o, const int* b, T* y, GroupedRows rx, int e, int k,   \
                            int n) {                                                                                  \
    ROWS<false>(x, w, o, b, y, rx, e, k, n);                                                                          \
  }                                                                                                                   \
  KERNEL void __launch_bounds__(kGroupedThreads, 2)                                                                   \
      grouped_matmul_transposed_##NAME(const T* x, const T* w, const int* o, const int* b, T* y, GroupedRows rx,      \
                                       int e, int k, int n) {                                                         \
    ROWS<true>(x, w, o, b, y, rx, e, k, n);                                                                           \
  }                                                                                                                   \
  KERNEL void __launch_bounds__(kGroupedThreads, 2)                                                                   \
      grouped_matmul_grad_##NAME(const T* a, const T* g, const int* o, const int* b, T* dw, GroupedRows ra,           \
                                 GroupedRows rg, int k, int n) {                                                      \
    GRAD(a, g, o, b, dw, ra, rg, k, n);                                                                               \
  }
PARTITA_GROUPED(DeviceBf16, bf16, multiply_rows, add_rows)
PARTITA_GROUPED(DeviceF16, f16, multiply_rows, add_rows)
PARTITA_GROUPED(float, f32, multiply_wide_rows, add_wide_rows)
PARTITA_GROUPED(double, f64, multiply_wide_rows, add_wide_rows)
#undef PARTITA_GROUPED
