// Scores of attention as its kernels share them: scaled, masked.
#pragma once

#include "runtime/cuda/kernels/device.h"
#include "runtime/cuda/kernels/element.h"

namespace {

template <typename T>
__device__ T infinity() {
  return T(1) / T(0);
}

// Where the mask of a head begins; heads are counted over all batches.
__device__ inline int64_t mask_of_head(const ScoresDevice& z, int64_t head) {
  return head / z.heads * z.mask_stride[0] + head % z.heads * z.mask_stride[1];
}

// The score of key j for query i: scaled, masked; minus infinity where it must not look. The head's mask begins at
// element `head_mask` of `mask`.
template <typename T>
__device__ T score(const ScoresDevice& z, T product, const void* mask, int64_t head_mask, int64_t i, int64_t j) {
  if (z.causal && j > i + z.t - z.s) return -infinity<T>();
  const T x = product * static_cast<T>(z.scale);
  const int64_t at = head_mask + i * z.mask_stride[2] + j * z.mask_stride[3];
  switch (z.mask) {
    case kBoolMask:
      return static_cast<const uint8_t*>(mask)[at] != 0 ? x : -infinity<T>();
    case kF32Mask:
      return x + static_cast<T>(static_cast<const float*>(mask)[at]);
    case kF64Mask:
      return x + static_cast<T>(static_cast<const double*>(mask)[at]);
    case kBf16Mask:
      return x + static_cast<T>(wide(static_cast<const DeviceBf16*>(mask)[at]));
    case kF16Mask:
      return x + static_cast<T>(wide(static_cast<const DeviceF16*>(mask)[at]));
    default:
      return x;
  }
}

}  // namespace
