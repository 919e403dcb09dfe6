// Scores of attention as its kernels share them: scaled, masked.
#pragma once

#include "base/math/masked_score.h"
#include "runtime/cuda/kernels/device.h"
#include "runtime/cuda/kernels/element.h"

namespace {

// Not T(1) / T(0), which is a division at run time.
template <typename T>
__device__ T infinity() {
  return static_cast<T>(__builtin_huge_val());
}

// Where the mask of a head begins; heads are counted over all batches.
__device__ inline int64_t mask_of_head(const ScoresDevice& z, int64_t head) {
  return head / z.heads * z.mask_stride[0] + head % z.heads * z.mask_stride[1];
}

// With a mask that is added (base/math/masked_score.h).
template <typename T>
__device__ T added(T score, T mask) {
  const T x = score + mask, least = static_cast<T>(partita::kLeastMaskedScore);
  return x < least && x > -infinity<T>() ? least : x;
}

// Calls `use` with how a mask of this kind changes a scaled score: (score, element of the mask) -> score. Where the
// mask says no, it is minus infinity, whatever it was.
template <typename T, typename F>
__device__ void with_mask(const ScoresDevice& z, const void* mask, F use) {
  switch (z.mask) {
    case kBoolMask:
      return use([m = static_cast<const uint8_t*>(mask)](T x, int64_t at) { return m[at] != 0 ? x : -infinity<T>(); });
    case kF32Mask:
      return use([m = static_cast<const float*>(mask)](T x, int64_t at) { return added(x, static_cast<T>(m[at])); });
    case kF64Mask:
      return use([m = static_cast<const double*>(mask)](T x, int64_t at) { return added(x, static_cast<T>(m[at])); });
    case kBf16Mask:
      return use([m = static_cast<const DeviceBf16*>(mask)](T x, int64_t at) {
        return added(x, static_cast<T>(wide(m[at])));
      });
    case kF16Mask:
      return use(
          [m = static_cast<const DeviceF16*>(mask)](T x, int64_t at) { return added(x, static_cast<T>(wide(m[at]))); });
    default:
      return use([](T x, int64_t) { return x; });
  }
}

// Where the mask of query i and key j lies; the head's begins at `head_mask`.
__device__ inline int64_t mask_element(const ScoresDevice& z, int64_t head_mask, int64_t i, int64_t j) {
  return head_mask + i * z.mask_stride[2] + j * z.mask_stride[3];
}

// Whether causality lets query i look at key j.
__device__ inline bool may_look(const ScoresDevice& z, int64_t i, int64_t j) { return !z.causal || j <= i + z.t - z.s; }

// The score of key j for query i: scaled, masked; minus infinity where it must not look.
template <typename T>
__device__ T score(const ScoresDevice& z, T product, const void* mask, int64_t head_mask, int64_t i, int64_t j) {
  if (!may_look(z, i, j)) return -infinity<T>();
  T x = product * static_cast<T>(z.scale);
  with_mask<T>(z, mask, [&](auto masked) { x = masked(x, mask_element(z, head_mask, i, j)); });
  return x;
}

}  // namespace
