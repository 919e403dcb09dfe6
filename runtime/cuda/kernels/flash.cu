// Attention whose scores never leave the registers (FlashAttention-2, Dao 2023), forward and backward, for heads of at most
// D elements. Every result is written by one block, in one order of additions: the same bits each time.
//
// A block owns 64 rows, 16 to a warp, and goes through the rows of the other side in steps of kStep, each copied into
// shared memory while the step before is computed with:
//   forward       owns queries:  S = Q K^T; P = exp(S - running maximum); O += P V
//   query grads   owns queries:  dP = G V^T; S = Q K^T; dS = exp(S - lse) (dP - delta); dQ += dS K
//   key grads     owns keys:     dP^T = V G^T; S^T = K Q^T; dV += P^T G; dK += dS^T Q, over all query heads of its group
// G is the output's gradient, and delta = rows of sum(G O).
#include "runtime/cuda/kernels/scores.h"
#include "runtime/cuda/kernels/tile_products.h"

namespace {

constexpr float kLog2E = 1.4426950408889634f;
template <typename T, int D, bool kOwnsKeys = false>
constexpr int kStep = flash_step(sizeof(T), D, kOwnsKeys);

// A matrix in shared memory with room for `count` rows of D elements, and what comes behind it.
template <typename T, int D>
__device__ T* take_rows(char*& shared, int count) {
  T* rows = reinterpret_cast<T*>(shared);
  shared += count * kStride<T, D> * static_cast<int>(sizeof(T));
  return rows;
}

// Rows of `width` elements, one every `pitch`, into a matrix of D columns: the first `exist` of kRows; zeros in the rest
// and in the columns beyond. A group of copies. `from` is at a multiple of 16 bytes where width and pitch are.
template <int kRows, int D, typename T>
__device__ void load_rows(T* to, const T* from, int exist, int width, int64_t pitch) {
  constexpr int kVector = 16 / static_cast<int>(sizeof(T));
  if (width % kVector == 0 && pitch % kVector == 0) {
    for (int v = static_cast<int>(threadIdx.x); v < kRows * (D / kVector); v += kFlashThreads) {
      const int row = v / (D / kVector), column = v % (D / kVector) * kVector;
      const bool exists = row < exist && column < width;
      copy_async16(to + row * kStride<T, D> + column, exists ? from + row * pitch + column : from, exists);
    }
  } else {
    for (int v = static_cast<int>(threadIdx.x); v < kRows * D; v += kFlashThreads) {
      const int row = v / D, column = v % D;
      to[row * kStride<T, D> + column] = row < exist && column < width ? from[row * pitch + column] : narrow<T>(0);
    }
  }
  commit_copies();
}

// This warp's rows of a result, `exist` of `width` elements, one every `pitch`, each times its factor.
template <int D, typename T>
__device__ void store_rows(T* to, const WarpSum<D>& sum, int exist, int width, int64_t pitch,
                           const float (&factor)[2]) {
  const int g = lane_number() / 4, first = lane_number() % 4 * 2;
  UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = warp_number() * 16 + half * 8 + g;
    if (row >= exist) continue;
    UNROLL
    for (int n = 0; n < D / 8; ++n) {
      UNROLL
      for (int x = 0; x < 2; ++x) {
        const int column = n * 8 + first + x;
        if (column < width) to[row * pitch + column] = narrow<T>(sum[n][half * 2 + x] * factor[half]);
      }
    }
  }
}

template <int N>
__device__ void clear(WarpSum<N>& sum) {
  UNROLL
  for (int n = 0; n < N / 8; ++n) sum[n][0] = sum[n][1] = sum[n][2] = sum[n][3] = 0;
}

// Over the four lanes that share a row.
__device__ inline float row_sum(float v) {
  v += shuffle_xor(v, 1);
  return v + shuffle_xor(v, 2);
}
__device__ inline float larger(float a, float b) { return b > a ? b : a; }
__device__ inline float row_maximum(float v) {
  v = larger(v, shuffle_xor(v, 1));
  return larger(v, shuffle_xor(v, 2));
}

// Positions are int: all rows of a launch are counted by one (cuda_flash.cc sees to it).
__device__ inline int queries_of(const ScoresDevice& z) { return static_cast<int>(z.s); }
__device__ inline int keys_of(const ScoresDevice& z) { return static_cast<int>(z.t); }
// How far a query may look beyond the key of its own number.
__device__ inline int reach(const ScoresDevice& z) { return keys_of(z) - queries_of(z); }

// Keys that some of the queries [first, first + kFlashRows) may look at: [0, result).
__device__ inline int key_end(const ScoresDevice& z, int first) {
  const int rows = min(queries_of(z) - first, kFlashRows), end = first + rows + reach(z);
  return !z.causal || end > keys_of(z) ? keys_of(z) : end < 0 ? 0 : end;
}

// A block that owns queries [first, first + rows) of a head; those that have most to do under causality begin first.
struct QueryBlock {
  int head, first, rows;
  __device__ explicit QueryBlock(const ScoresDevice& z) {
    const int blocks = (queries_of(z) + kFlashRows - 1) / kFlashRows, block = static_cast<int>(blockIdx.x);
    head = block / blocks;
    first = (blocks - 1 - block % blocks) * kFlashRows;
    rows = queries_of(z) - first;
  }
};

// Visits this lane's elements of a tile of scores as (number of eight columns, element of them).
template <int N, typename F>
__device__ void for_elements(F visit) {
  UNROLL
  for (int n = 0; n < N / 8; ++n) {
    UNROLL
    for (int x = 0; x < 4; ++x) visit(n, x);
  }
}

// Scaled and masked scores of a tile, whose element (n, x) is that of query query_of(n, x) and key key_of(n, x); minus
// infinity beyond either. `whole`: every query may look at every key. What the tile needs is asked once, not for each
// element.
template <int N, typename Query, typename Key>
__device__ void mask_scores(WarpSum<N>& c, const ScoresDevice& z, const void* mask, int64_t head_mask, bool whole,
                            Query query_of, Key key_of) {
  const float scale = static_cast<float>(z.scale);
  for_elements<N>([&](int n, int x) { c[n][x] *= scale; });
  if (whole) return;
  const auto looks = [&](int query, int key) {
    return query < queries_of(z) && key < keys_of(z) && (!z.causal || key <= query + reach(z));
  };
  if (z.mask == kNoMask) {
    for_elements<N>([&](int n, int x) {
      if (!looks(query_of(n, x), key_of(n, x))) c[n][x] = -infinity<float>();
    });
    return;
  }
  with_mask<float>(z, mask, [&](auto masked) {
    for_elements<N>([&](int n, int x) {
      const int query = query_of(n, x), key = key_of(n, x);
      c[n][x] = looks(query, key) ? masked(c[n][x], mask_element(z, head_mask, query, key)) : -infinity<float>();
    });
  });
}

// The same where a block owns queries from `i0` on, and the tile's columns are the keys from `j0` on.
template <int N>
__device__ void mask_query_rows(WarpSum<N>& c, const ScoresDevice& z, const void* mask, int64_t head_mask, int i0,
                                int j0) {
  const int i = i0 + warp_number() * 16 + lane_number() / 4, j = j0 + lane_number() % 4 * 2;
  const bool whole = z.mask == kNoMask && j0 + N <= keys_of(z) && (!z.causal || j0 + N - 1 <= i0 + reach(z));
  mask_scores<N>(
      c, z, mask, head_mask, whole, [&](int, int x) { return i + x / 2 * 8; },
      [&](int n, int x) { return j + n * 8 + x % 2; });
}

template <int D, typename T>
__device__ void flash_forward(const T* q, const T* k, const T* v, const void* mask, T* out, float* lse,
                              const FlashDevice f) {
  constexpr int N = kStep<T, D>;
  const ScoresDevice& z = f.scores;
  const QueryBlock own(z);
  const int64_t key_heads = z.heads / f.group, key_head = own.head / f.group;
  q += f.q.of_head(own.head, z.heads, own.first);
  k += f.k.of_head(key_head, key_heads, 0);
  v += f.v.of_head(key_head, key_heads, 0);
  char* shared = launch_shared();
  T *queries = take_rows<T, D>(shared, kFlashRows), *keys = take_rows<T, D>(shared, N),
    *values = take_rows<T, D>(shared, N);
  const T* warp_queries = queries + warp_number() * 16 * kStride<T, D>;
  const int end = key_end(z, own.first);
  const int64_t head_mask = mask_of_head(z, own.head);

  WarpSum<D> sum;
  clear<D>(sum);
  float maximum[2] = {-infinity<float>(), -infinity<float>()}, total[2] = {0, 0};
  load_rows<kFlashRows, D>(queries, q, own.rows, f.d, f.q.row);
  load_rows<N, D>(keys, k, end, f.d, f.k.row);
  load_rows<N, D>(values, v, end, f.e, f.v.row);
  for (int j0 = 0; j0 < end; j0 += N) {
    const int left = max(end - j0 - N, 0);
    const int64_t next = left > 0 ? j0 + N : 0;
    wait_copies<1>();
    __syncthreads();
    WarpSum<N> p;
    clear<N>(p);
    add_rows_by_rows<N, D>(p, warp_queries, keys);
    __syncthreads();
    load_rows<N, D>(keys, k + next * f.k.row, left, f.d, f.k.row);
    mask_query_rows<N>(p, z, mask, head_mask, own.first, j0);
    float shift[2], shrink[2];
    UNROLL
    for (int half = 0; half < 2; ++half) {
      float most = maximum[half];
      UNROLL
      for (int n = 0; n < N / 8; ++n) most = larger(larger(most, p[n][half * 2]), p[n][half * 2 + 1]);
      most = row_maximum(most);
      shift[half] = most == -infinity<float>() ? 0 : most;  // nothing to look at yet
      shrink[half] = exp2f((maximum[half] - shift[half]) * kLog2E);
      maximum[half] = most;
      total[half] *= shrink[half];
    }
    for_elements<N>([&](int n, int x) {
      p[n][x] = exp2f((p[n][x] - shift[x / 2]) * kLog2E);
      total[x / 2] += p[n][x];
    });
    for_elements<D>([&](int n, int x) { sum[n][x] *= shrink[x / 2]; });
    wait_copies<1>();
    __syncthreads();
    add_sum_by_columns<N, D>(sum, p, values);
    __syncthreads();
    load_rows<N, D>(values, v + next * f.v.row, left, f.e, f.v.row);
  }
  wait_copies<0>();
  float factor[2];
  UNROLL
  for (int half = 0; half < 2; ++half) {
    total[half] = row_sum(total[half]);
    factor[half] = total[half] == 0 ? 0 : 1 / total[half];
    const int row = warp_number() * 16 + half * 8 + lane_number() / 4;
    if (row < own.rows && lane_number() % 4 == 0)
      lse[own.head * z.s + own.first + row] = total[half] == 0 ? -infinity<float>() : maximum[half] + logf(total[half]);
  }
  store_rows<D>(out + f.out.of_head(own.head, z.heads, own.first), sum, own.rows, f.e, f.out.row, factor);
}

// delta of one row of the output for each warp.
template <typename T>
__device__ void flash_delta(const T* g, const T* out, float* delta, const FlashDevice f) {
  const ScoresDevice& z = f.scores;
  const int row = static_cast<int>(blockIdx.x) * (kFlashThreads / 32) + warp_number(), head = row / queries_of(z),
            query = row % queries_of(z);
  const bool exists = head < z.count;
  float sum = 0;
  if (exists) {
    g += f.g.of_head(head, z.heads, query);
    out += f.out.of_head(head, z.heads, query);
    for (int c = lane_number(); c < f.e; c += 32) sum += wide(g[c]) * wide(out[c]);
  }
  UNROLL
  for (int distance = 16; distance > 0; distance /= 2) sum += shuffle_xor(sum, distance);
  if (lane_number() == 0 && exists) delta[row] = sum;
}

// A row's log-sum as the shift of its exponentials: a row without keys, or beyond the last, has none that counts.
__device__ inline float exponent_shift(const float* lse, int row, int rows) {
  const float known = row < rows ? lse[row] : -infinity<float>();
  return known == -infinity<float>() ? infinity<float>() : known;
}

// p becomes the probability of a score, dp the gradient of the score before it was scaled.
__device__ inline void score_gradient(float& p, float& dp, float shift, float delta) {
  p = exp2f((p - shift) * kLog2E);
  dp = p == 0 ? 0 : p * (dp - delta);
}

template <int D, typename T>
__device__ void flash_query_grads(const T* g, const T* q, const T* k, const T* v, const void* mask, const float* lse,
                                  const float* delta, T* dq, const FlashDevice f) {
  constexpr int N = kStep<T, D>;
  const ScoresDevice& z = f.scores;
  const QueryBlock own(z);
  const int64_t first = own.head * z.s + own.first, key_heads = z.heads / f.group, key_head = own.head / f.group;
  k += f.k.of_head(key_head, key_heads, 0);
  v += f.v.of_head(key_head, key_heads, 0);
  char* shared = launch_shared();
  T *queries = take_rows<T, D>(shared, kFlashRows), *gradients = take_rows<T, D>(shared, kFlashRows),
    *keys = take_rows<T, D>(shared, N), *values = take_rows<T, D>(shared, N);
  const int warp_rows = warp_number() * 16 * kStride<T, D>;
  const int end = key_end(z, own.first);
  const int64_t head_mask = mask_of_head(z, own.head);

  float shift[2], deltas[2];
  UNROLL
  for (int half = 0; half < 2; ++half) {
    const int row = warp_number() * 16 + half * 8 + lane_number() / 4;
    shift[half] = exponent_shift(lse + first, row, own.rows);
    deltas[half] = row < own.rows ? delta[first + row] : 0;
  }
  WarpSum<D> sum;
  clear<D>(sum);
  load_rows<kFlashRows, D>(queries, q + f.q.of_head(own.head, z.heads, own.first), own.rows, f.d, f.q.row);
  load_rows<kFlashRows, D>(gradients, g + f.g.of_head(own.head, z.heads, own.first), own.rows, f.e, f.g.row);
  load_rows<N, D>(values, v, end, f.e, f.v.row);
  load_rows<N, D>(keys, k, end, f.d, f.k.row);
  for (int j0 = 0; j0 < end; j0 += N) {
    const int left = max(end - j0 - N, 0);
    const int64_t next = left > 0 ? j0 + N : 0;
    wait_copies<1>();
    __syncthreads();
    WarpSum<N> dp, p;
    clear<N>(dp);
    add_rows_by_rows<N, D>(dp, gradients + warp_rows, values);
    wait_copies<0>();
    __syncthreads();
    load_rows<N, D>(values, v + next * f.v.row, left, f.e, f.v.row);
    clear<N>(p);
    add_rows_by_rows<N, D>(p, queries + warp_rows, keys);
    mask_query_rows<N>(p, z, mask, head_mask, own.first, j0);
    for_elements<N>([&](int n, int x) { score_gradient(p[n][x], dp[n][x], shift[x / 2], deltas[x / 2]); });
    add_sum_by_columns<N, D>(sum, dp, keys);
    __syncthreads();
    load_rows<N, D>(keys, k + next * f.k.row, left, f.d, f.k.row);
  }
  wait_copies<0>();
  const float scale = static_cast<float>(z.scale), factor[2] = {scale, scale};
  store_rows<D>(dq + f.dq.of_head(own.head, z.heads, own.first), sum, own.rows, f.d, f.dq.row, factor);
}

template <int D, typename T>
__device__ void flash_key_grads(const T* g, const T* q, const T* k, const T* v, const void* mask, const float* lse,
                                const float* delta, T* dk, T* dv, const FlashDevice f) {
  constexpr int N = kStep<T, D, true>;
  const ScoresDevice& z = f.scores;
  const int blocks = (keys_of(z) + kFlashRows - 1) / kFlashRows, block = static_cast<int>(blockIdx.x),
            key_head = block / blocks, j0 = block % blocks * kFlashRows, rows = keys_of(z) - j0;
  const int64_t key_heads = z.heads / f.group;
  char* shared = launch_shared();
  T *keys = take_rows<T, D>(shared, kFlashRows), *values = take_rows<T, D>(shared, kFlashRows),
    *queries = take_rows<T, D>(shared, N), *gradients = take_rows<T, D>(shared, N);
  const int warp_rows = warp_number() * 16 * kStride<T, D>;
  // The first query that may look at these keys, down to a whole step.
  const int seen = z.causal && j0 > reach(z) ? j0 - reach(z) : 0, begin = seen / N * N;
  auto load_gradients = [&](int head, int i0) {
    load_rows<N, D>(gradients, g + f.g.of_head(head, z.heads, i0), queries_of(z) - i0, f.e, f.g.row);
  };
  auto load_queries = [&](int head, int i0) {
    load_rows<N, D>(queries, q + f.q.of_head(head, z.heads, i0), queries_of(z) - i0, f.d, f.q.row);
  };

  WarpSum<D> sum_k, sum_v;
  clear<D>(sum_k);
  clear<D>(sum_v);
  load_rows<kFlashRows, D>(keys, k + f.k.of_head(key_head, key_heads, j0), rows, f.d, f.k.row);
  load_rows<kFlashRows, D>(values, v + f.v.of_head(key_head, key_heads, j0), rows, f.e, f.v.row);
  // All query heads of the group, one after the other.
  int head = key_head * f.group, i0 = begin;
  int left = begin < queries_of(z) ? f.group * ((queries_of(z) - begin + N - 1) / N) : 0;  // steps
  if (left > 0) {
    load_gradients(head, i0);
    load_queries(head, i0);
  }
  for (; left > 0; --left) {
    wait_copies<1>();
    __syncthreads();
    WarpSum<N> dp, p;
    clear<N>(dp);
    add_rows_by_rows<N, D>(dp, values + warp_rows, gradients);
    wait_copies<0>();
    __syncthreads();
    clear<N>(p);
    add_rows_by_rows<N, D>(p, keys + warp_rows, queries);
    const int64_t head_mask = mask_of_head(z, head);
    const int key = j0 + warp_number() * 16 + lane_number() / 4, column = i0 + lane_number() % 4 * 2;
    const bool whole = z.mask == kNoMask && (!z.causal || j0 + kFlashRows - 1 <= i0 + reach(z));
    mask_scores<N>(
        p, z, mask, head_mask, whole, [&](int n, int x) { return column + n * 8 + x % 2; },
        [&](int, int x) { return key + x / 2 * 8; });
    UNROLL
    for (int n = 0; n < N / 8; ++n) {
      UNROLL
      for (int x = 0; x < 2; ++x) {
        const int query = column + n * 8 + x;
        const float shift = exponent_shift(lse + head * z.s, query, queries_of(z)),
                    known = query < queries_of(z) ? delta[head * z.s + query] : 0;
        UNROLL
        for (int half = 0; half < 2; ++half) score_gradient(p[n][half * 2 + x], dp[n][half * 2 + x], shift, known);
      }
    }
    add_sum_by_columns<N, D>(sum_v, p, gradients);
    i0 += N;
    if (i0 >= queries_of(z)) ++head, i0 = begin;
    __syncthreads();
    if (left > 1) load_gradients(head, i0);
    add_sum_by_columns<N, D>(sum_k, dp, queries);
    __syncthreads();
    if (left > 1) load_queries(head, i0);
  }
  wait_copies<0>();
  const float scale = static_cast<float>(z.scale), scaled[2] = {scale, scale}, plain[2] = {1, 1};
  store_rows<D>(dk + f.dk.of_head(key_head, key_heads, j0), sum_k, rows, f.d, f.dk.row, scaled);
  store_rows<D>(dv + f.dv.of_head(key_head, key_heads, j0), sum_v, rows, f.e, f.dv.row, plain);
}

}  // namespace

// At least two blocks at a time: as many registers as there can be.
#define PARTITA_FLASH(T, NAME, D)                                                                                     \
  KERNEL void __launch_bounds__(kFlashThreads, 2)                                                                     \
      flash_forward_##NAME##_##D(const T* q, const T* k, const T* v, const void* m, T* y, float* l, FlashDevice f) {   \
    flash_forward<D>(q, k, v, m, y, l, f);                                                                            \
  }                                                                                                                   \
  KERNEL void __launch_bounds__(kFlashThreads, 2)                                                                     \
      flash_query_grads_##NAME##_##D(const T* g, const T* q, const T* k, const T* v, const void* m, const float* l,    \
                                     const float* delta, T* dq, FlashDevice f) {                                      \
    flash_query_grads<D>(g, q, k, v, m, l, delta, dq, f);                                                             \
  }                                                                                                                   \
  KERNEL void __launch_bounds__(kFlashThreads, 2)                                                                     \
      flash_key_grads_##NAME##_##D(const T* g, const T* q, const T* k, const T* v, const void* m, const float* l,      \
                                   const float* delta, T* dk, T* dv, FlashDevice f) {                                 \
    flash_key_grads<D>(g, q, k, v, m, l, delta, dk, dv, f);                                                           \
  }
#define PARTITA_FLASHES(T, NAME)                                                                         \
  PARTITA_FLASH(T, NAME, 64)                                                                             \
  PARTITA_FLASH(T, NAME, 128)                                                                            \
  KERNEL void __launch_bounds__(kFlashThreads)                                                           \
      flash_delta_##NAME(const T* g, const T* y, float* delta, const FlashDevice f) {                    \
    flash_delta(g, y, delta, f);                                                                         \
  }
PARTITA_FLASHES(DeviceBf16, bf16)
PARTITA_FLASHES(DeviceF16, f16)
PARTITA_FLASHES(float, f32)
#undef PARTITA_FLASHES
#undef PARTITA_FLASH
