// Numbers of 16 bits as fp8 with a scale for each block of 128, or 128 x 128, as products of Hopper take them
// (runtime/cuda/cuda_fp8.cc). A block of threads has 128 x 128 numbers, each of which is read once and written once, or
// twice: as rows and as columns.
#include "runtime/cuda/kernels/device.h"
#include "runtime/cuda/kernels/element.h"
#include "runtime/cuda/kernels/warp.h"

namespace {

// Bits of the fraction; the largest number is 1.75 times 2 to the kGreatest.
struct E4M3 {
  static constexpr int kFraction = 3, kGreatest = 8;
};
struct E5M2 {
  static constexpr int kFraction = 2, kGreatest = 15;
};

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr uint32_t kNaN = 0x7fc00000;

struct BlockScale {
  float scale, inverse;
};
// Of a block whose largest number has the bits `most`: NaN where that is none, or one whose scale would be infinite.
template <typename F>
__device__ BlockScale block_scale(uint32_t most) {
  constexpr uint32_t kLeastTop = 127 - 80;
  uint32_t top = (most >> 23) + ((most & 0x7fffff) > 0x600000 ? 1 : 0);
  if (top < kLeastTop) top = kLeastTop;
  if (top >= 255) return {__uint_as_float(kNaN), __uint_as_float(kNaN)};
  const uint32_t scale = top - F::kGreatest;
  return {__uint_as_float(scale << 23), __uint_as_float((254 - scale) << 23)};
}

// To nearest even, of what is no larger than the largest number, or NaN.
template <typename F>
__device__ uint32_t fp8_of(float v) {
  constexpr uint32_t kBias = (1 << (6 - F::kFraction)) - 1, kNormal = 128 - kBias, kDropped = 23 - F::kFraction;
  const uint32_t bits = __float_as_uint(v), sign = bits >> 24 & 0x80, size = bits & 0x7fffffff;
  if (size > 0x7f800000) return 0x7f;
  if (size < kNormal << 23) {  // a number of this size is a whole one of the least steps
    const uint32_t steps = (kNormal + kDropped) << 23;
    return sign | (__float_as_uint(__uint_as_float(size) + __uint_as_float(steps)) - steps);
  }
  const uint32_t half = (1u << (kDropped - 1)) - 1 + (size >> kDropped & 1);
  return sign | (((size + half) >> kDropped) - ((kNormal - 1) << F::kFraction));
}

// Four, the first in the lowest byte.
template <typename F>
__device__ uint32_t four_of(float a, float b, float c, float d) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint16_t low, high;
  if constexpr (F::kFraction == 3) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
  }
  return low | uint32_t{high} << 16;
#else
  return fp8_of<F>(a) | fp8_of<F>(b) << 8 | fp8_of<F>(c) << 16 | fp8_of<F>(d) << 24;
#endif
}

// Eight numbers of a row, as they lie in memory.
struct Eight {
  uint32_t pairs[4];
  __device__ void load(const DeviceBf16* at) {
    const uint4 v = *reinterpret_cast<const uint4*>(at);
    pairs[0] = v.x, pairs[1] = v.y, pairs[2] = v.z, pairs[3] = v.w;
  }
  __device__ uint32_t bits(int k) const { return k % 2 == 0 ? pairs[k / 2] << 16 : pairs[k / 2] & 0xffff0000; }
  __device__ uint32_t size(int k) const { return bits(k) & 0x7fffffff; }
  __device__ float operator[](int k) const { return __uint_as_float(bits(k)); }
};

__device__ uint32_t greater(uint32_t a, uint32_t b) { return a > b ? a : b; }
// Over lanes that differ in bits below `end` and from `begin` on.
__device__ uint32_t greatest_of_lanes(uint32_t most, int begin, int end) {
  for (int mask = begin; mask < end; mask *= 2) most = greater(most, __shfl_xor_sync(0xffffffffu, most, mask));
  return most;
}
__device__ int64_t padded(int64_t blocks) { return (blocks + 3) / 4 * 4; }

// A tile's scale, in rows of a multiple of four, what is over being 0.
__device__ void write_tile_scale(float* scales, int64_t row, int64_t column, int64_t columns, float scale) {
  float* of_row = scales + row * padded(columns);
  of_row[column] = scale;
  for (int64_t c = columns; column + 1 == columns && c < padded(columns); ++c) of_row[c] = 0;
}

// y [rows, columns] of x, and of each 128 numbers of a row a scale [columns / 128, rows]; or of each tile one, [rows /
// 128, padded(columns / 128)].
template <typename F>
__device__ void quantize_rows(const DeviceBf16* x, uint8_t* y, float* scales, int64_t rows, int64_t columns,
                              int tiles) {
  constexpr int kEach = 8;
  __shared__ uint32_t of_warp[kWarps];
  const int thread = static_cast<int>(threadIdx.x), vector = thread % 16, first = thread / 16;
  const int64_t across = columns / 128, block = blockIdx.x % across, begin = blockIdx.x / across * 128;
  const int64_t column = block * 128 + vector * 8;
  Eight v[kEach];
  uint32_t most[kEach];
  UNROLL for (int i = 0; i < kEach; ++i) {
    const int64_t row = begin + first + 16 * i;
    v[i] = {};
    if (row < rows) v[i].load(x + row * columns + column);
  }
  UNROLL for (int i = 0; i < kEach; ++i) {
    most[i] = 0;
    UNROLL for (int k = 0; k < 8; ++k) most[i] = greater(most[i], v[i].size(k));
    most[i] = greatest_of_lanes(most[i], 1, 16);
  }
  if (tiles != 0) {
    uint32_t all = 0;
    UNROLL for (int i = 0; i < kEach; ++i) all = greater(all, most[i]);
    all = greatest_of_lanes(all, 16, 32);
    if (thread % 32 == 0) of_warp[thread / 32] = all;
    __syncthreads();
    for (int w = 0; w < kWarps; ++w) all = greater(all, of_warp[w]);
    UNROLL for (int i = 0; i < kEach; ++i) most[i] = all;
    if (thread == 0) write_tile_scale(scales, begin / 128, block, across, block_scale<F>(all).scale);
  }
  UNROLL for (int i = 0; i < kEach; ++i) {
    const int64_t row = begin + first + 16 * i;
    if (row >= rows) continue;
    const BlockScale s = block_scale<F>(most[i]);
    const float f = s.inverse;
    uint2 bytes;
    bytes.x = four_of<F>(v[i][0] * f, v[i][1] * f, v[i][2] * f, v[i][3] * f);
    bytes.y = four_of<F>(v[i][4] * f, v[i][5] * f, v[i][6] * f, v[i][7] * f);
    *reinterpret_cast<uint2*>(y + row * columns + column) = bytes;
    if (tiles == 0 && vector == 0) scales[block * rows + row] = s.scale;
  }
}

// What a matrix becomes whose numbers are read once for both forms: y and its scales as of quantize_rows().
struct AsRows {
  uint8_t* y;
  float* scales;
};

// This thread's numbers as rows, four of them from row `first` on and eight columns from each of `begin` and `begin` +
// 64 on. `tile`: of the whole tile; else each row has a scale of its own.
template <typename F>
__device__ void write_rows(const AsRows& to, const Eight (&v)[2][4], int64_t rows, int64_t columns, int64_t first,
                           int64_t begin, const BlockScale* tile) {
  UNROLL for (int i = 0; i < 4; ++i) {
    uint32_t most = 0;
    UNROLL for (int h = 0; h < 2; ++h) {
      UNROLL for (int k = 0; k < 8; ++k) most = greater(most, v[h][i].size(k));
    }
    const BlockScale s = tile != nullptr ? *tile : block_scale<F>(greatest_of_lanes(most, 1, 8));
    const float f = s.inverse;
    UNROLL for (int h = 0; h < 2; ++h) {
      const Eight& x = v[h][i];
      uint2 bytes;
      bytes.x = four_of<F>(x[0] * f, x[1] * f, x[2] * f, x[3] * f);
      bytes.y = four_of<F>(x[4] * f, x[5] * f, x[6] * f, x[7] * f);
      *reinterpret_cast<uint2*>(to.y + (first + i) * columns + begin + h * 64) = bytes;
    }
    if (tile == nullptr && threadIdx.x % 8 == 0) to.scales[begin / 128 * rows + first + i] = s.scale;
  }
}

// y [columns, rows] of x, and of each 128 numbers of a column a scale [rows / 128, columns]; or of each tile one,
// [columns / 128, padded(rows / 128)]. Columns go through shared memory, four rows a word, a word more than a column has
// from one to the next. `as_rows`: the other form as well, of whole tiles.
template <typename F>
__device__ void quantize_columns(const DeviceBf16* x, uint8_t* y, float* scales, int64_t rows, int64_t columns,
                                 int tiles, const AsRows* as_rows) {
  constexpr int kWords = 128 / 4, kStride = kWords + 1;
  __shared__ uint32_t turned[128 * kStride];
  __shared__ uint32_t of_warps[kWarps][128];
  __shared__ float inverses[128];
  const int thread = static_cast<int>(threadIdx.x), vector = thread % 8, four = thread / 8;
  const int64_t across = (columns + 127) / 128, begin = blockIdx.x % across * 128, block = blockIdx.x / across;
  const DeviceBf16* from = x + (block * 128 + four * 4) * columns + begin + vector * 8;
  Eight v[2][4];
  UNROLL for (int h = 0; h < 2; ++h) {
    UNROLL for (int i = 0; i < 4; ++i) {
      v[h][i] = {};
      if (begin + h * 64 + vector * 8 < columns) v[h][i].load(from + i * columns + h * 64);
    }
  }
  UNROLL for (int h = 0; h < 2; ++h) {
    UNROLL for (int k = 0; k < 8; ++k) {
      uint32_t most = 0;
      UNROLL for (int i = 0; i < 4; ++i) most = greater(most, v[h][i].size(k));
      most = greatest_of_lanes(most, 8, 32);
      if (thread % 32 < 8) of_warps[thread / 32][h * 64 + vector * 8 + k] = most;
    }
  }
  __syncthreads();
  if (thread < 128) {
    uint32_t most = 0;
    for (int w = 0; w < kWarps; ++w) most = greater(most, of_warps[w][thread]);
    if (tiles != 0) {
      most = greatest_of_lanes(most, 1, 32);
      if (thread % 32 == 0) turned[thread / 32] = most;
    } else {
      const BlockScale s = block_scale<F>(most);
      inverses[thread] = s.inverse;
      if (begin + thread < columns) scales[block * columns + begin + thread] = s.scale;
    }
  }
  __syncthreads();
  const int64_t first = block * 128 + four * 4;
  if (tiles != 0) {
    const uint32_t most = greater(greater(turned[0], turned[1]), greater(turned[2], turned[3]));
    const BlockScale s = block_scale<F>(most);
    if (thread < 128) inverses[thread] = s.inverse;
    if (thread == 0) write_tile_scale(scales, begin / 128, block, rows / 128, s.scale);
    if (thread == 0 && as_rows != nullptr) write_tile_scale(as_rows->scales, block, begin / 128, across, s.scale);
    if (as_rows != nullptr) write_rows<F>(*as_rows, v, rows, columns, first, begin + vector * 8, &s);
    __syncthreads();
  } else if (as_rows != nullptr) {
    write_rows<F>(*as_rows, v, rows, columns, first, begin + vector * 8, nullptr);
  }
  UNROLL for (int h = 0; h < 2; ++h) {
    UNROLL for (int k = 0; k < 8; ++k) {
      const int column = h * 64 + vector * 8 + k;
      const float f = inverses[column];
      turned[column * kStride + four] = four_of<F>(v[h][0][k] * f, v[h][1][k] * f, v[h][2][k] * f, v[h][3][k] * f);
    }
  }
  __syncthreads();
  for (int column = thread / 32; column < 128 && begin + column < columns; column += kWarps) {
    auto* to = reinterpret_cast<uint32_t*>(y + (begin + column) * rows + block * 128);
    to[thread % 32] = turned[column * kStride + thread % 32];
  }
}

}  // namespace

#define PARTITA_QUANTIZE(F, NAME)                                                                                      \
  KERNEL void __launch_bounds__(kThreads) quantize_rows_##NAME(const DeviceBf16* x, uint8_t* y, float* scales,         \
                                                               int64_t rows, int64_t columns, int tiles) {             \
    quantize_rows<F>(x, y, scales, rows, columns, tiles);                                                              \
  }                                                                                                                    \
  KERNEL void __launch_bounds__(kThreads) quantize_columns_##NAME(const DeviceBf16* x, uint8_t* y, float* scales,      \
                                                                  int64_t rows, int64_t columns, int tiles) {          \
    quantize_columns<F>(x, y, scales, rows, columns, tiles, nullptr);                                                  \
  }                                                                                                                    \
  KERNEL void __launch_bounds__(kThreads) quantize_both_##NAME(const DeviceBf16* x, uint8_t* y, float* scales,         \
                                                               uint8_t* turned, float* turned_scales, int64_t rows,    \
                                                               int64_t columns, int tiles) {                           \
    const AsRows as_rows{y, scales};                                                                                   \
    quantize_columns<F>(x, turned, turned_scales, rows, columns, tiles, &as_rows);                                     \
  }
PARTITA_QUANTIZE(E4M3, e4m3)
PARTITA_QUANTIZE(E5M2, e5m2)
#undef PARTITA_QUANTIZE
