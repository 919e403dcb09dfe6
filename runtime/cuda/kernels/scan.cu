// Along one dimension of x seen as [outer, n, inner]: a thread has one column, and goes through it in order.
#include "runtime/cuda/kernels/device.h"
#include "runtime/cuda/kernels/element.h"

namespace {

template <typename T>
__device__ void cumsum(const T* x, T* y, int64_t outer, int64_t n, int64_t inner, int exclusive, int reverse) {
  for (int64_t c = first_item(); c < outer * inner; c += item_step()) {
    Wide<T> sum = 0;
    for (int64_t j = 0; j < n; ++j) {
      const int64_t at = (c / inner * n + (reverse ? n - 1 - j : j)) * inner + c % inner;
      const Wide<T> before = sum;
      sum += wide(x[at]);
      y[at] = narrow<T>(exclusive ? before : sum);
    }
  }
}

// NaN counts as the largest value and equals itself.
template <typename T>
__device__ bool greater(T a, T b) {
  return a > b || (a != a && b == b);
}

// Of equal ones the first, or the last.
template <typename T>
__device__ void argmax(const T* x, int64_t* y, int64_t outer, int64_t n, int64_t inner, int last) {
  for (int64_t c = first_item(); c < outer * inner; c += item_step()) {
    const T* column = x + c / inner * n * inner + c % inner;
    int64_t best = 0;
    for (int64_t j = 1; j < n; ++j) {
      const Wide<T> now = wide(column[best * inner]), other = wide(column[j * inner]);
      if (last ? !greater(now, other) : greater(other, now)) best = j;
    }
    y[c] = best;
  }
}

// The k first in order, equal ones by their places: each the best of those that come after the one before.
template <typename T>
__device__ void topk(const T* x, T* values, int64_t* indices, int64_t outer, int64_t n, int64_t inner, int64_t k,
                     int largest) {
  for (int64_t c = first_item(); c < outer * inner; c += item_step()) {
    const T* column = x + c / inner * n * inner + c % inner;
    auto before = [&](int64_t a, int64_t b) {
      const Wide<T> va = wide(column[a * inner]), vb = wide(column[b * inner]);
      if (largest ? greater(va, vb) : greater(vb, va)) return true;
      return (largest ? !greater(vb, va) : !greater(va, vb)) && a < b;
    };
    int64_t last = -1;
    for (int64_t j = 0; j < k; ++j) {
      int64_t best = -1;
      for (int64_t a = 0; a < n; ++a) {
        if (last >= 0 && !before(last, a)) continue;
        if (best < 0 || before(a, best)) best = a;
      }
      const int64_t to = (c / inner * k + j) * inner + c % inner;
      values[to] = column[best * inner];
      indices[to] = last = best;
    }
  }
}

}  // namespace

#define PARTITA_SCANS(T, NAME)                                                                               \
  KERNEL void cumsum_##NAME(const T* x, T* y, int64_t o, int64_t n, int64_t i, int exclusive, int reverse) { \
    cumsum(x, y, o, n, i, exclusive, reverse);                                                               \
  }                                                                                                          \
  KERNEL void argmax_##NAME(const T* x, int64_t* y, int64_t o, int64_t n, int64_t i, int last) {             \
    argmax(x, y, o, n, i, last);                                                                             \
  }                                                                                                          \
  KERNEL void topk_##NAME(const T* x, T* v, int64_t* at, int64_t o, int64_t n, int64_t i, int64_t k, int l) { \
    topk(x, v, at, o, n, i, k, l);                                                                           \
  }
PARTITA_SCANS(DeviceBf16, bf16)
PARTITA_SCANS(DeviceF16, f16)
PARTITA_SCANS(float, f32)
PARTITA_SCANS(double, f64)
PARTITA_SCANS(int32_t, i32)
PARTITA_SCANS(int64_t, i64)
#undef PARTITA_SCANS
