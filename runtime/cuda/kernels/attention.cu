// Between attention's matrix products: a row of scores becomes probabilities, and their gradient that of the scores. A
// block has one row.
#include "runtime/cuda/kernels/scores.h"

namespace {

constexpr int kThreads = 128;

// The same result on all threads, in a fixed order.
template <typename T, typename F>
__device__ T over_block(T v, T* shared, F combine) {
  const int t = static_cast<int>(threadIdx.x);
  __syncthreads();
  shared[t] = v;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (t < half) shared[t] = combine(shared[t], shared[t + half]);
  }
  __syncthreads();
  return shared[0];
}

template <typename T>
__device__ void softmax_rows(T* scores, const void* mask, float* lse, const ScoresDevice z) {
  __shared__ T shared[kThreads];
  const int64_t row = blockIdx.x, head = mask_of_head(z, z.first + row / z.s), i = row % z.s;
  T* p = scores + row * z.t;
  T most = -infinity<T>();
  bool lost = false;  // NaN among the scores
  for (int64_t j = threadIdx.x; j < z.t; j += kThreads) {
    const T x = score(z, p[j], mask, head, i, j);
    p[j] = x;
    lost = lost || x != x;
    most = x > most ? x : most;
  }
  most = lost ? infinity<T>() - infinity<T>() : most;
  most = over_block(most, shared, [](T a, T b) { return a != a ? a : b != b ? b : a > b ? a : b; });
  T sum = 0;
  const bool none = most == -infinity<T>();  // no key is attended
  for (int64_t j = threadIdx.x; j < z.t; j += kThreads) {
    p[j] = none ? T(0) : exp(p[j] - most);
    sum += p[j];
  }
  sum = over_block(sum, shared, [](T a, T b) { return a + b; });
  for (int64_t j = threadIdx.x; j < z.t && !none; j += kThreads) p[j] /= sum;
  if (threadIdx.x == 0) lse[z.first * z.s + row] = static_cast<float>(none ? most : most + log(sum));
}

// From products q k^T: probabilities again, by the forward's log-sum.
template <typename T>
__device__ void probabilities(T* scores, const void* mask, const float* lse, const ScoresDevice z) {
  const int64_t row = blockIdx.x, head = mask_of_head(z, z.first + row / z.s), i = row % z.s;
  const T known = static_cast<T>(lse[z.first * z.s + row]);
  for (int64_t j = threadIdx.x; j < z.t; j += kThreads) {
    T& p = scores[row * z.t + j];
    const T x = score(z, p, mask, head, i, j);
    p = x == -infinity<T>() ? T(0) : exp(x - known);
  }
}

// ds = p (dp - <g, y>) scale, over dp; g and y are the output's gradient and value, rows of `e`.
template <typename T>
__device__ void score_gradients(const T* p, T* dp, const T* g, const T* y, int64_t e, const ScoresDevice z) {
  __shared__ T shared[kThreads];
  const int64_t row = blockIdx.x, out = (z.first * z.s + row) * e;
  T delta = 0;
  for (int64_t c = threadIdx.x; c < e; c += kThreads) delta += g[out + c] * y[out + c];
  delta = over_block(delta, shared, [](T a, T b) { return a + b; });
  for (int64_t j = threadIdx.x; j < z.t; j += kThreads) {
    const int64_t at = row * z.t + j;
    dp[at] = p[at] == T(0) ? T(0) : p[at] * (dp[at] - delta) * static_cast<T>(z.scale);
  }
}

}  // namespace

KERNEL void softmax_rows_f32(float* p, const void* m, float* l, ScoresDevice z) { softmax_rows(p, m, l, z); }
KERNEL void softmax_rows_f64(double* p, const void* m, float* l, ScoresDevice z) { softmax_rows(p, m, l, z); }
KERNEL void probabilities_f32(float* p, const void* m, const float* l, ScoresDevice z) { probabilities(p, m, l, z); }
KERNEL void probabilities_f64(double* p, const void* m, const float* l, ScoresDevice z) { probabilities(p, m, l, z); }
KERNEL void score_gradients_f32(const float* p, float* dp, const float* g, const float* y, int64_t e, ScoresDevice z) {
  score_gradients(p, dp, g, y, e, z);
}
KERNEL void score_gradients_f64(const double* p, double* dp, const double* g, const double* y, int64_t e,
                                ScoresDevice z) {
  score_gradients(p, dp, g, y, e, z);
}
