// What the kernels that ship with the CUDA module share. They are compiled by nvcc when the module is built; a test
// compiles the same files for the host.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define KERNEL extern "C" __global__
#define UNROLL _Pragma("unroll")
#endif

// runtime/kernels/indexing.h's AlongLayout, for at most kMostDims other dimensions.
constexpr int kMostDims = 8;
struct AlongDevice {
  int64_t size, x_stride, count, inner, columns;
  int32_t dims;
  int64_t extents[kMostDims], x_strides[kMostDims], index_strides[kMostDims];

  __device__ void column(int64_t c, int64_t& at_x, int64_t& at_i) const {
    at_x = at_i = 0;
    for (int d = dims; d-- > 0; c /= extents[d]) {
      at_x += c % extents[d] * x_strides[d];
      at_i += c % extents[d] * index_strides[d];
    }
  }
};

// runtime/kernels/indexing.h's SliceLayout, counted in slices.
struct SlicesDevice {
  int64_t batches, count, batch_slices;
  int32_t depth;
  int64_t extents[kMostDims], strides[kMostDims];
};

// kernels/indexing.cu: what an update does to the element that it hits.
enum UpdateMode : int32_t { kReplace, kAddUpdate, kMulUpdate, kMaxUpdate, kMinUpdate };

// kernels/epilogue.cu: what a product's result goes through.
enum EpilogueKind : int32_t { kNoEpilogue, kReluEpilogue, kGeluEpilogue };

// n / d for n below 2^31 as a product, of a divisor that the host knows (Granlund, Montgomery: Division by Invariant
// Integers using Multiplication, 1994).
struct Divisor {
  uint32_t divisor = 1, factor = 1;
  int32_t shift = 0;

  static Divisor of(int64_t d) {
    Divisor made;
    if (d < 1) return made;  // of nothing
    made.divisor = static_cast<uint32_t>(d);
    while ((int64_t{1} << made.shift) < d) ++made.shift;
    made.factor =
        static_cast<uint32_t>((uint64_t{1} << 32) * ((uint64_t{1} << made.shift) - made.divisor) / made.divisor + 1);
    return made;
  }
  __device__ int32_t operator()(int32_t n) const {
    const auto u = static_cast<uint32_t>(n);
    return static_cast<int32_t>((static_cast<uint32_t>((uint64_t{factor} * u) >> 32) + u) >> shift);
  }
};

// runtime/kernels/window.h's Window, of planes with fewer than 2^31 elements all together: [batch * channels,
// spatial…], or, with channels last, [batch, spatial…, channels].
constexpr int kPoolSpan = 4;  // neighbours along the last dimension whose gradients a thread has
struct WindowDevice {
  int32_t planes;
  int32_t in[3], out[3], kernel[3], stride[3], low[3], high[3], dilation[3];
  int32_t include_pad;   // of an average
  int32_t channels = 1;  // side by side in a plane
  Divisor by_in[3] = {}, by_out[3] = {}, by_stride[3] = {}, by_dilation[3] = {}, by_spans = {}, by_channels = {};

  // With its divisors.
  WindowDevice ready() const {
    WindowDevice w = *this;
    for (int d = 0; d < 3; ++d) {
      w.by_in[d] = Divisor::of(in[d]), w.by_out[d] = Divisor::of(out[d]);
      w.by_stride[d] = Divisor::of(stride[d]), w.by_dilation[d] = Divisor::of(dilation[d]);
    }
    w.by_spans = Divisor::of(spans()), w.by_channels = Divisor::of(channels);
    return w;
  }
  __host__ __device__ int32_t spans() const { return (in[2] + kPoolSpan - 1) / kPoolSpan; }  // of a row
  __device__ int32_t in_plane() const { return in[0] * in[1] * in[2]; }
  __device__ int32_t out_plane() const { return out[0] * out[1] * out[2]; }
  // First tap of the window at `o`.
  __device__ int32_t start(int d, int32_t o) const { return o * stride[d] - low[d]; }
};

// The scores of attention: [heads of a chunk, s, t].
enum MaskKind : int32_t { kNoMask, kBoolMask, kF32Mask, kF64Mask, kBf16Mask, kF16Mask };
struct ScoresDevice {
  int64_t first, count;  // heads of all batches: [first, first + count)
  int64_t heads, s, t;   // of a batch
  double scale;
  int32_t causal;
  int32_t mask;  // MaskKind
  int64_t mask_stride[4];
};

// Where the rows of an attention's operand lie.
struct RowsDevice {
  int64_t batch, head, row;  // elements from one sample, head and row to the next
#ifndef PARTITA_DEVICE_TYPES_ONLY
  // Where the rows of a head begin, of all batches' `heads` each; `first` of them.
  __device__ int64_t of_head(int64_t number, int64_t heads, int64_t first) const {
    return number / heads * batch + number % heads * head + first * row;
  }
#endif
};

// kernels/flash.cu: a block of kFlashThreads owns kFlashRows rows (queries or keys) and goes through the others by
// flash_step() of them. Matrices have `head` elements a row in shared memory, of `size` bytes, and 16 bytes between
// rows.
struct FlashDevice {
  ScoresDevice scores;  // of all heads
  int32_t group;        // query heads of a key head
  int32_t d, e;         // elements of a query and of a value, at most `head`
  RowsDevice q, k, v, out, g, dq, dk, dv;
};
constexpr int kFlashThreads = 128, kFlashRows = 64;
constexpr int flash_step(int size, int head, bool owns_keys) { return size == 4 || (owns_keys && head > 64) ? 32 : 64; }
// Shared memory of a block that holds so many matrices of its own rows and two of the others'.
constexpr int flash_shared_bytes(int size, int head, int own, bool owns_keys = false) {
  return (own * kFlashRows + 2 * flash_step(size, head, owns_keys)) * (head * size + 16);
}

// kernels/grouped.cu: a block of kGroupedThreads has a tile of so many rows and columns, by the size of an element.
// Those of 16 bits go through shared memory in kGroupedStages stages, kGroupedInner of the inner dimension each; an
// operand lies there with the inner dimension last or first, with kGroupedPadding elements between rows so that no two
// rows of eight meet in a bank.
constexpr int kGroupedThreads = 256, kGroupedInner = 32, kGroupedStages = 3, kGroupedPadding = 8;
constexpr int grouped_tile(int size) { return size == 2 ? 128 : 64; }
constexpr int grouped_stage_elements(bool inner_last) {
  return inner_last ? grouped_tile(2) * (kGroupedInner + kGroupedPadding)
                    : kGroupedInner * (grouped_tile(2) + kGroupedPadding);
}
// Shared memory that a launch gives a block beside the kernel's own.
constexpr int grouped_shared_bytes(int size, bool a_inner_last, bool b_inner_last) {
  return size == 2 ? kGroupedStages * 2 * (grouped_stage_elements(a_inner_last) + grouped_stage_elements(b_inner_last))
                   : 0;
}
// An operand's row for a row of all parts (runtime/kernels/grouped_sizes.h).
struct GroupedRows {
  int modulo, divisor;
#ifndef PARTITA_DEVICE_TYPES_ONLY
  __device__ int operator()(int row) const { return row % modulo / divisor; }
#endif
};

#ifndef PARTITA_DEVICE_TYPES_ONLY
__device__ inline int64_t first_item() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ inline int64_t item_step() { return int64_t{gridDim.x} * blockDim.x; }

template <typename I>
__device__ inline int64_t clamp_index(I index, int64_t size) {
  const int64_t i = index < 0 ? int64_t{index} + size : int64_t{index};
  return i < 0 ? 0 : i >= size ? size - 1 : i;
}
#endif
