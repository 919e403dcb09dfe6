// Elements of 16 bits, which kernels read as f32 and round to nearest even where they write; other types are
// themselves.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#else
#include "base/float16.h"
#endif

struct DeviceBf16 {
  uint16_t bits;
};
struct DeviceF16 {
  uint16_t bits;
};

template <typename T>
struct WideOf {
  using type = T;
};
template <>
struct WideOf<DeviceBf16> {
  using type = float;
};
template <>
struct WideOf<DeviceF16> {
  using type = float;
};
// What elements of T are computed in.
template <typename T>
using Wide = typename WideOf<T>::type;

template <typename T>
__device__ inline T wide(T x) {
  return x;
}
template <typename T>
__device__ inline T narrow(Wide<T> x) {
  return x;
}

#ifdef __CUDACC__
__device__ inline float wide(DeviceBf16 x) { return __uint_as_float(uint32_t{x.bits} << 16); }
__device__ inline float wide(DeviceF16 x) { return __half2float(__ushort_as_half(x.bits)); }
template <>
__device__ inline DeviceBf16 narrow<DeviceBf16>(float x) {
  return {__bfloat16_as_ushort(__float2bfloat16_rn(x))};
}
template <>
__device__ inline DeviceF16 narrow<DeviceF16>(float x) {
  return {__half_as_ushort(__float2half_rn(x))};
}
#else
inline float wide(DeviceBf16 x) { return partita::bf16_to_float(x.bits); }
inline float wide(DeviceF16 x) { return partita::f16_to_float(x.bits); }
template <>
inline DeviceBf16 narrow<DeviceBf16>(float x) {
  return {partita::float_to_bf16(x)};
}
template <>
inline DeviceF16 narrow<DeviceF16>(float x) {
  return {partita::float_to_f16(x)};
}
#endif
