// Elements of arrays as the libraries of the GPU that is this machine read and write them, by CUDA's names of types.
#pragma once

#include <library_types.h>

#include <cstddef>
#include <cstdint>

#include "base/float16.h"

namespace partita::stand_in {

inline size_t size_of(cudaDataType_t type) { return type == CUDA_R_64F ? 8 : type == CUDA_R_32F ? 4 : 2; }
inline double load(const void* at, cudaDataType_t type, int64_t k) {
  switch (type) {
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
