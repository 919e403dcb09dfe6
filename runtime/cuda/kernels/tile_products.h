// Products of matrices in shared memory, 16 rows of the left one to a warp, sums in f32 registers: on the tensor cores
// for 16-bit elements, by plain multiplication and addition for f32.
//
// A sum of 16 x N has the layout of mma_m16n8k16's c for every eight columns: with g = lane / 4 and k = 2 (lane % 4),
// c[n] holds the elements (g, 8 n + k), (g, 8 n + k + 1), (g + 8, 8 n + k), (g + 8, 8 n + k + 1). That of one product
// is the left operand of the next without going through memory.
#pragma once

#include "runtime/cuda/kernels/device.h"
#include "runtime/cuda/kernels/warp.h"

namespace {

template <int N>
using WarpSum = float[N / 8][4];

__device__ inline int lane_number() { return static_cast<int>(threadIdx.x) % 32; }
__device__ inline int warp_number() { return static_cast<int>(threadIdx.x) / 32; }

// Matrices in shared memory have D elements a row, and 16 bytes between rows so that no two rows of eight meet in a
// bank.
template <typename T, int D>
constexpr int kStride = D + 16 / static_cast<int>(sizeof(T));

template <typename T>
using OnlyNarrow = decltype(T{}.bits);

// c [16, N] += a [16, D] b^T with b [N, D]; `a` are this warp's rows.
template <int N, int D, typename T, typename = OnlyNarrow<T>>
__device__ void add_rows_by_rows(WarpSum<N>& c, const T* a, const T* b) {
  const int lane = lane_number();
  const T* left = a + lane % 16 * kStride<T, D> + lane / 16 * 8;
  const T* right = b + (lane / 16 * 8 + lane % 8) * kStride<T, D> + lane / 8 % 2 * 8;
  UNROLL
  for (int k = 0; k < D; k += 16) {
    uint32_t fa[4], fb[4];
    ldmatrix_x4(fa, left + k);
    UNROLL
    for (int n = 0; n < N; n += 16) {
      ldmatrix_x4(fb, right + n * kStride<T, D> + k);
      mma_m16n8k16(c[n / 8], fa, fb[0], fb[1], T{});
      mma_m16n8k16(c[n / 8 + 1], fa, fb[2], fb[3], T{});
    }
  }
}

// c [16, D] += p [16, N] b with b [N, D]; p, a sum of before, is rounded to T.
template <int N, int D, typename T, typename = OnlyNarrow<T>>
__device__ void add_sum_by_columns(WarpSum<D>& c, const WarpSum<N>& p, const T* b) {
  const int lane = lane_number();
  const T* right = b + lane % 16 * kStride<T, D> + lane / 16 * 8;
  UNROLL
  for (int k = 0; k < N; k += 16) {
    const float(&low)[4] = p[k / 8], (&high)[4] = p[k / 8 + 1];
    const uint32_t fa[4] = {pack(low[0], low[1], T{}), pack(low[2], low[3], T{}), pack(high[0], high[1], T{}),
                            pack(high[2], high[3], T{})};
    UNROLL
    for (int n = 0; n < D; n += 16) {
      uint32_t fb[4];
      ldmatrix_x4_trans(fb, right + k * kStride<T, D> + n);
      mma_m16n8k16(c[n / 8], fa, fb[0], fb[1], T{});
      mma_m16n8k16(c[n / 8 + 1], fa, fb[2], fb[3], T{});
    }
  }
}

struct alignas(16) FourFloats {
  float x[4];
};
struct alignas(8) TwoFloats {
  float x[2];
};

template <int N, int D>
__device__ void add_rows_by_rows(WarpSum<N>& c, const float* a, const float* b) {
  const int g = lane_number() / 4, column = lane_number() % 4 * 2;
  for (int k = 0; k < D; k += 4) {
    const FourFloats low = *reinterpret_cast<const FourFloats*>(a + g * kStride<float, D> + k),
                     high = *reinterpret_cast<const FourFloats*>(a + (g + 8) * kStride<float, D> + k);
    UNROLL
    for (int n = 0; n < N / 8; ++n) {
      UNROLL
      for (int x = 0; x < 2; ++x) {
        const FourFloats right = *reinterpret_cast<const FourFloats*>(b + (n * 8 + column + x) * kStride<float, D> + k);
        UNROLL
        for (int y = 0; y < 4; ++y) {
          c[n][x] += low.x[y] * right.x[y];
          c[n][x + 2] += high.x[y] * right.x[y];
        }
      }
    }
  }
}

// The lanes of a row of p lie side by side: element k of it comes from lane k % 8 / 2 of the four.
template <int N, int D>
__device__ void add_sum_by_columns(WarpSum<D>& c, const WarpSum<N>& p, const float* b) {
  const int lane = lane_number(), column = lane % 4 * 2;
  UNROLL
  for (int k = 0; k < N; ++k) {
    const int from = lane / 4 * 4 + k % 8 / 2;
    const float low = shuffle(p[k / 8][k % 2], from), high = shuffle(p[k / 8][2 + k % 2], from);
    UNROLL
    for (int n = 0; n < D / 8; ++n) {
      const TwoFloats right = *reinterpret_cast<const TwoFloats*>(b + k * kStride<float, D> + n * 8 + column);
      UNROLL
      for (int x = 0; x < 2; ++x) {
        c[n][x] += low * right.x[x];
        c[n][x + 2] += high * right.x[x];
      }
    }
  }
}

}  // namespace
