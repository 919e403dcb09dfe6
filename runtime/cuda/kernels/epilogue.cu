// What follows a product, where cuBLASLt has no algorithm that does it as it writes the result.
#include "runtime/cuda/kernels/device.h"
#include "runtime/cuda/kernels/element.h"

namespace {

constexpr float kTanhScale = 0.7978845608028654f, kCubic = 0.044715f;  // GELU's tanh form, as in ir/ops/gelu.cc

__device__ float gelu(float x) { return 0.5f * x * (1 + tanhf(kTanhScale * x * (1 + kCubic * x * x))); }
__device__ float gelu_slope(float x) {
  const float t = tanhf(kTanhScale * x * (1 + kCubic * x * x));
  return 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * kTanhScale * (1 + 3 * kCubic * x * x);
}

// c [count / columns, columns], in place; `bias` [columns], `of` and `aux` like c; absent ones are null.
template <typename T>
__device__ void finish(T* c, const T* bias, const T* of, T* aux, int64_t count, int64_t columns, int activation) {
  for (int64_t k = first_item(); k < count; k += item_step()) {
    float x = wide(c[k]);
    if (bias != nullptr) x += wide(bias[k % columns]);
    if (aux != nullptr) aux[k] = narrow<T>(x);
    if (activation == kReluEpilogue) x = x < 0 ? 0 : x;
    if (activation == kGeluEpilogue) x = gelu(x);
    if (of != nullptr) x *= gelu_slope(wide(of[k]));
    c[k] = narrow<T>(x);
  }
}

// x [rows, columns]: a thread adds up a column.
template <typename T>
__device__ void sum_rows(const T* x, T* sums, int64_t rows, int64_t columns) {
  for (int64_t j = first_item(); j < columns; j += item_step()) {
    float sum = 0;
    for (int64_t k = 0; k < rows; ++k) sum += wide(x[k * columns + j]);
    sums[j] = narrow<T>(sum);
  }
}

}  // namespace

#define PARTITA_EPILOGUES(T, NAME)                                                                           \
  KERNEL void finish_product_##NAME(T* c, const T* bias, const T* of, T* aux, int64_t count, int64_t n, int a) { \
    finish(c, bias, of, aux, count, n, a);                                                                   \
  }                                                                                                          \
  KERNEL void sum_rows_##NAME(const T* x, T* sums, int64_t rows, int64_t n) { sum_rows(x, sums, rows, n); }
PARTITA_EPILOGUES(DeviceBf16, bf16)
PARTITA_EPILOGUES(DeviceF16, f16)
PARTITA_EPILOGUES(float, f32)
#undef PARTITA_EPILOGUES
