// Elements of arrays as the libraries of the GPU that is this machine read and write them, by CUDA's names of types.
#pragma once

#include <library_types.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/float16.h"

namespace partita::stand_in {

inline bool is_fp8(cudaDataType_t type) { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }
inline size_t size_of(cudaDataType_t type) {
  return is_fp8(type) ? 1 : type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2;
}
// E4M3 has no infinity, and one NaN a sign.
inline double fp8_to_double(uint8_t bits, cudaDataType_t type) {
  const bool e4m3 = type == CUDA_R_8F_E4M3;
  const int fraction = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15, exponent = (bits & 0x7f) >> fraction;
  const int low = bits & ((1 << fraction) - 1);
  double size = std::ldexp(exponent == 0 ? low : low + (1 << fraction), std::max(exponent, 1) - bias - fraction);
  if (e4m3 ? (bits & 0x7f) == 0x7f : exponent == 31 && low != 0) size = std::numeric_limits<double>::quiet_NaN();
  if (!e4m3 && exponent == 31 && low == 0) size = std::numeric_limits<double>::infinity();
  return bits & 0x80 ? -size : size;
}
inline double load(const void* at, cudaDataType_t type, int64_t k) {
  switch (type) {
    case CUDA_R_8F_E4M3:
    case CUDA_R_8F_E5M2:
      return fp8_to_double(static_cast<const uint8_t*>(at)[k], type);
    case CUDA_R_64F:
      return static_cast<const double*>(at)[k];
    case CUDA_R_32F:
      return static_cast<const float*>(at)[k];
    case CUDA_R_16BF:
      return bf16_to_float(static_cast<const uint16_t*>(at)[k]);
    default:
      return f16_to_float(static_cast<const uint16_t*>(at)[k]);
  }
}
inline void store(void* at, cudaDataType_t type, int64_t k, double value) {
  switch (type) {
    case CUDA_R_64F:
      static_cast<double*>(at)[k] = value;
      return;
    case CUDA_R_32F:
      static_cast<float*>(at)[k] = static_cast<float>(value);
      return;
    case CUDA_R_16BF:
      static_cast<uint16_t*>(at)[k] = float_to_bf16(static_cast<float>(value));
      return;
    default:
      static_cast<uint16_t*>(at)[k] = float_to_f16(static_cast<float>(value));
  }
}

}  // namespace partita::stand_in
