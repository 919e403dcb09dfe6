// Steps that read or write at indices. Elements that only move are of 1, 2, 4 or 8 bytes; indices are i32 or i64, the
// negative ones count from the end, and those outside go to the nearest element.
#include "runtime/cuda/kernels/device.h"
#include "runtime/cuda/kernels/element.h"

namespace {

// Words of rows: y[o, j, :] = x[o, indices[j], :], each row `words` words.
template <typename W, typename I>
__device__ void gather_rows(const W* x, const I* indices, W* y, int64_t outer, int64_t n, int64_t count,
                            int64_t words) {
  const int64_t total = outer * count * words;
  for (int64_t e = first_item(); e < total; e += item_step()) {
    const int64_t r = e / words;
    y[e] = n == 0 ? W(0) : x[(r / count * n + clamp_index(indices[r % count], n)) * words + e % words];
  }
}

// y's columns lie along one dimension of x; see AlongLayout.
template <typename W, typename I>
__device__ void take_along(const W* x, const I* indices, W* y, const AlongDevice a) {
  const int64_t total = a.columns * a.count;
  for (int64_t e = first_item(); e < total; e += item_step()) {
    int64_t at_x, at_i;
    a.column(e % a.columns, at_x, at_i);
    const int64_t i = at_i + e / a.columns * a.inner;
    y[i] = a.size == 0 ? W(0) : x[at_x + clamp_index(indices[i], a.size) * a.x_stride];
  }
}

// dx is cleared, and of the type that is summed in; columns never meet, so each thread adds up one.
template <typename T, typename I>
__device__ void take_along_grad(const T* g, const I* indices, Wide<T>* dx, const AlongDevice a) {
  for (int64_t c = first_item(); c < a.columns && a.size > 0; c += item_step()) {
    int64_t at_x, at_i;
    a.column(c, at_x, at_i);
    for (int64_t j = 0; j < a.count; ++j) {
      const int64_t i = at_i + j * a.inner;
      dx[at_x + clamp_index(indices[i], a.size) * a.x_stride] += wide(g[i]);
    }
  }
}

constexpr int kSortThreads = 512, kDigits = 16, kSortAhead = 8;
static_assert(kSortThreads == 16 * 32);  // groups of threads, and threads of each, whose sums are added up

// One block sorts `count` keys and their positions, stable, four bits a pass: each thread has a run of neighbours.
// `keys` and `order` are two arrays of `count` each; the sorted ones are the first if `passes` is even. Keys are loaded
// some at a time, since each load takes far longer than what is done with it.
template <typename I>
__device__ void sort_rows(const I* indices, int64_t n, int64_t count, int passes, int32_t* keys, int32_t* order) {
  __shared__ uint32_t places[kDigits * kSortThreads];  // by digit, then by thread
  __shared__ uint32_t sums[kSortThreads], groups[16];
  const int t = static_cast<int>(threadIdx.x);
  const int64_t run = (count + kSortThreads - 1) / kSortThreads, begin = min(run * t, count),
                end = min(begin + run, count);
  for (int64_t k = begin; k < end; ++k) {
    keys[k] = static_cast<int32_t>(clamp_index(indices[k], n));
    order[k] = static_cast<int32_t>(k);
  }
  for (int pass = 0; pass < passes; ++pass) {
    const int32_t *from = keys + (pass % 2) * count, *from_order = order + (pass % 2) * count;
    int32_t *to = keys + (1 - pass % 2) * count, *to_order = order + (1 - pass % 2) * count;
    for (int d = 0; d < kDigits; ++d) places[d * kSortThreads + t] = 0;
    int32_t key[kSortAhead], position[kSortAhead];
    for (int64_t k = begin; k < end; k += kSortAhead) {
      for (int j = 0; j < kSortAhead; ++j) key[j] = from[min(k + j, end - 1)];
      for (int j = 0; j < kSortAhead; ++j) {
        if (k + j < end) ++places[((key[j] >> (4 * pass)) % kDigits) * kSortThreads + t];
      }
    }
    __syncthreads();
    // Exclusive sums over all places: each thread adds up sixteen neighbours, then what comes before them.
    uint32_t sum = 0;
    for (int d = 0; d < kDigits; ++d) sum += places[t * kDigits + d];
    sums[t] = sum;
    __syncthreads();
    if (t < 16) {
      uint32_t total = 0;
      for (int k = 0; k < 32; ++k) total += sums[32 * t + k];
      groups[t] = total;
    }
    __syncthreads();
    uint32_t before = 0;
    for (int g = 0; g < t / 32; ++g) before += groups[g];
    for (int k = t / 32 * 32; k < t; ++k) before += sums[k];
    for (int d = 0; d < kDigits; ++d) {
      const uint32_t own = places[t * kDigits + d];
      places[t * kDigits + d] = before;
      before += own;
    }
    __syncthreads();
    for (int64_t k = begin; k < end; k += kSortAhead) {
      for (int j = 0; j < kSortAhead; ++j) {
        key[j] = from[min(k + j, end - 1)];
        position[j] = from_order[min(k + j, end - 1)];
      }
      for (int j = 0; j < kSortAhead; ++j) {
        if (k + j >= end) continue;
        const uint32_t at = places[((key[j] >> (4 * pass)) % kDigits) * kSortThreads + t]++;
        to[at] = key[j];
        to_order[at] = position[j];
      }
    }
    __syncthreads();
  }
}

// dx is cleared. Blocks along x have one place in the order each, and the first of a run of equal keys adds the whole run
// up, in order; along y they take turns with the outer parts, along z they share long rows.
template <typename T>
__device__ void add_runs(const T* g, const int32_t* keys, const int32_t* order, T* dx, int64_t outer, int64_t n,
                         int64_t count, int64_t inner) {
  const int64_t place = blockIdx.x;
  const int32_t key = keys[place];
  if (place > 0 && keys[place - 1] == key) return;
  const int64_t step = int64_t{gridDim.z} * blockDim.x;
  for (int64_t o = blockIdx.y; o < outer; o += gridDim.y) {
    for (int64_t c = int64_t{blockIdx.z} * blockDim.x + threadIdx.x; c < inner; c += step) {
      Wide<T> sum = 0;
      for (int64_t k = place; k < count && keys[k] == key; ++k) sum += wide(g[(o * count + order[k]) * inner + c]);
      dx[(o * n + key) * inner + c] = narrow<T>(sum);
    }
  }
}

// Sums as elements.
template <typename T>
__device__ void round_sums(const float* sums, T* y, int64_t count) {
  for (int64_t e = first_item(); e < count; e += item_step()) y[e] = narrow<T>(sums[e]);
}

// gather_nd's indices [batches * count, depth] as numbers of slices of all of x.
template <typename I>
__device__ void slice_rows(const I* indices, int64_t* rows, const SlicesDevice s) {
  for (int64_t r = first_item(); r < s.batches * s.count; r += item_step()) {
    int64_t at = r / s.count * s.batch_slices;
    for (int d = 0; d < s.depth; ++d) at += clamp_index(indices[r * s.depth + d], s.extents[d]) * s.strides[d];
    rows[r] = at;
  }
}

// NaN wins, as the host has it.
template <typename T>
__device__ T updated(T x, T update, int mode) {
  const Wide<T> a = wide(x), u = wide(update);
  if (mode == kAddUpdate) return narrow<T>(a + u);
  if (mode == kMulUpdate) return narrow<T>(a * u);
  const bool wins = (mode == kMaxUpdate ? u > a : u < a) || u != u;
  return mode == kReplace || wins ? update : x;
}

// y is x already. Columns never meet, so each thread goes through the updates of one, in their order.
template <typename T, typename I>
__device__ void scatter_elements(const I* indices, const T* updates, T* y, const AlongDevice a, int mode) {
  for (int64_t c = first_item(); c < a.columns && a.size > 0; c += item_step()) {
    int64_t at_x, at_i;
    a.column(c, at_x, at_i);
    for (int64_t j = 0; j < a.count; ++j) {
      const int64_t i = at_i + j * a.inner, to = at_x + clamp_index(indices[i], a.size) * a.x_stride;
      y[to] = updated(y[to], updates[i], mode);
    }
  }
}

// Slices of y, which is x already, by their numbers; slices of one batch alone meet, so each thread goes through a
// batch's updates of one place in them, in their order.
template <typename T>
__device__ void scatter_slices(const int64_t* rows, const T* updates, T* y, int64_t batches, int64_t count,
                               int64_t slice, int mode) {
  for (int64_t e = first_item(); e < batches * slice; e += item_step()) {
    for (int64_t r = e / slice * count; r < (e / slice + 1) * count; ++r) {
      const int64_t to = rows[r] * slice + e % slice;
      y[to] = updated(y[to], updates[r * slice + e % slice], mode);
    }
  }
}

// Block `*coordinate` of `parts` along a dimension.
template <typename W>
__device__ void shard_slice(const W* x, const int64_t* coordinate, W* y, int64_t outer, int64_t parts, int64_t block) {
  const int64_t at = clamp_index(*coordinate, parts);
  for (int64_t e = first_item(); e < outer * block; e += item_step())
    y[e] = x[(e / block * parts + at) * block + e % block];
}

}  // namespace

#define PARTITA_MOVES(W, BITS)                                                                                       \
  KERNEL void gather_##BITS##_i32(const W* x, const int32_t* i, W* y, int64_t o, int64_t n, int64_t c, int64_t w) {  \
    gather_rows(x, i, y, o, n, c, w);                                                                                \
  }                                                                                                                  \
  KERNEL void gather_##BITS##_i64(const W* x, const int64_t* i, W* y, int64_t o, int64_t n, int64_t c, int64_t w) {  \
    gather_rows(x, i, y, o, n, c, w);                                                                                \
  }                                                                                                                  \
  KERNEL void take_along_##BITS##_i32(const W* x, const int32_t* i, W* y, AlongDevice a) { take_along(x, i, y, a); } \
  KERNEL void take_along_##BITS##_i64(const W* x, const int64_t* i, W* y, AlongDevice a) { take_along(x, i, y, a); } \
  KERNEL void shard_slice_##BITS(const W* x, const int64_t* at, W* y, int64_t o, int64_t p, int64_t b) {             \
    shard_slice(x, at, y, o, p, b);                                                                                  \
  }
#define PARTITA_SCATTERS(T, NAME)                                                                                   \
  KERNEL void scatter_elements_##NAME##_i32(const int32_t* i, const T* u, T* y, AlongDevice a, int mode) {          \
    scatter_elements(i, u, y, a, mode);                                                                             \
  }                                                                                                                 \
  KERNEL void scatter_elements_##NAME##_i64(const int64_t* i, const T* u, T* y, AlongDevice a, int mode) {          \
    scatter_elements(i, u, y, a, mode);                                                                             \
  }                                                                                                                 \
  KERNEL void scatter_slices_##NAME(const int64_t* rows, const T* u, T* y, int64_t b, int64_t c, int64_t s, int m) { \
    scatter_slices(rows, u, y, b, c, s, m);                                                                         \
  }
PARTITA_SCATTERS(uint8_t, 8)  // those that replace alone, by their bits
PARTITA_SCATTERS(uint16_t, 16)
PARTITA_SCATTERS(uint32_t, 32)
PARTITA_SCATTERS(uint64_t, 64)
PARTITA_SCATTERS(DeviceBf16, bf16)
PARTITA_SCATTERS(DeviceF16, f16)
PARTITA_SCATTERS(float, f32)
PARTITA_SCATTERS(double, f64)
PARTITA_SCATTERS(int32_t, i32)
PARTITA_SCATTERS(int64_t, i64)
#undef PARTITA_SCATTERS

PARTITA_MOVES(uint8_t, 8)
PARTITA_MOVES(uint16_t, 16)
PARTITA_MOVES(uint32_t, 32)
PARTITA_MOVES(uint64_t, 64)
#undef PARTITA_MOVES

#define PARTITA_SUMS(T, NAME)                                                                                \
  KERNEL void take_along_grad_##NAME##_i32(const T* g, const int32_t* i, Wide<T>* dx, AlongDevice a) {       \
    take_along_grad(g, i, dx, a);                                                                            \
  }                                                                                                          \
  KERNEL void take_along_grad_##NAME##_i64(const T* g, const int64_t* i, Wide<T>* dx, AlongDevice a) {       \
    take_along_grad(g, i, dx, a);                                                                            \
  }                                                                                                          \
  KERNEL void add_runs_##NAME(const T* g, const int32_t* k, const int32_t* p, T* dx, int64_t outer,          \
                              int64_t n, int64_t c, int64_t inner) {                                         \
    add_runs(g, k, p, dx, outer, n, c, inner);                                                               \
  }
PARTITA_SUMS(DeviceBf16, bf16)
PARTITA_SUMS(DeviceF16, f16)
PARTITA_SUMS(float, f32)
PARTITA_SUMS(double, f64)
#undef PARTITA_SUMS

KERNEL void round_sums_bf16(const float* sums, DeviceBf16* y, int64_t count) { round_sums(sums, y, count); }
KERNEL void round_sums_f16(const float* sums, DeviceF16* y, int64_t count) { round_sums(sums, y, count); }
KERNEL void slice_rows_i32(const int32_t* i, int64_t* rows, SlicesDevice s) { slice_rows(i, rows, s); }
KERNEL void slice_rows_i64(const int64_t* i, int64_t* rows, SlicesDevice s) { slice_rows(i, rows, s); }
KERNEL void sort_rows_i32(const int32_t* i, int64_t n, int64_t count, int passes, int32_t* keys, int32_t* order) {
  sort_rows(i, n, count, passes, keys, order);
}
KERNEL void sort_rows_i64(const int64_t* i, int64_t n, int64_t count, int passes, int32_t* keys, int32_t* order) {
  sort_rows(i, n, count, passes, keys, order);
}
