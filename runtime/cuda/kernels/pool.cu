// Pooling and its gradients: a thread has one output, or one element of the gradient and goes through the windows that
// hold it, in order.
#include "runtime/cuda/kernels/device.h"
#include "runtime/cuda/kernels/element.h"

namespace {

// Calls visit(position in x's plane) for the taps of a window inside x, in row-major order.
template <typename F>
__device__ void for_inside(const WindowDevice& w, const int64_t* start, F visit) {
  for (int64_t a = 0; a < w.kernel[0]; ++a) {
    const int64_t d = start[0] + a * w.dilation[0];
    if (d < 0 || d >= w.in[0]) continue;
    for (int64_t b = 0; b < w.kernel[1]; ++b) {
      const int64_t h = start[1] + b * w.dilation[1];
      if (h < 0 || h >= w.in[1]) continue;
      for (int64_t c = 0; c < w.kernel[2]; ++c) {
        const int64_t k = start[2] + c * w.dilation[2];
        if (k >= 0 && k < w.in[2]) visit((d * w.in[1] + h) * w.in[2] + k);
      }
    }
  }
}

// Calls visit(output) for the windows of a plane that have a tap at position `at`, in row-major order.
template <typename F>
__device__ void for_windows_at(const WindowDevice& w, int64_t at, F visit) {
  int64_t p[3];
  for (int d = 3; d-- > 0; at /= w.in[d]) p[d] = at % w.in[d];
  for (int64_t a = 0; a < w.out[0]; ++a) {
    const int64_t da = p[0] + w.low[0] - a * w.stride[0];
    if (da < 0 || da % w.dilation[0] != 0 || da / w.dilation[0] >= w.kernel[0]) continue;
    for (int64_t b = 0; b < w.out[1]; ++b) {
      const int64_t db = p[1] + w.low[1] - b * w.stride[1];
      if (db < 0 || db % w.dilation[1] != 0 || db / w.dilation[1] >= w.kernel[1]) continue;
      // Along the last dimension only where a window can reach.
      const int64_t reach = (w.kernel[2] - 1) * w.dilation[2], last = p[2] + w.low[2];
      int64_t c = last - reach <= 0 ? 0 : (last - reach + w.stride[2] - 1) / w.stride[2];
      for (; c < w.out[2] && c * w.stride[2] <= last; ++c) {
        if ((last - c * w.stride[2]) % w.dilation[2] == 0) visit((a * w.out[1] + b) * w.out[2] + c);
      }
    }
  }
}

// 1 / (elements averaged): all of the window inside the padded x, or only those inside x.
template <typename T>
__device__ T weight(const WindowDevice& w, const int64_t* start) {
  int64_t count = 1;
  for (int d = 0; d < 3; ++d) {
    const int64_t first = w.include_pad || start[d] > 0 ? start[d] : 0;
    const int64_t limit = w.in[d] + (w.include_pad ? w.high[d] : 0), end = start[d] + w.kernel[d];
    const int64_t last = end < limit ? end : limit;
    count *= last > first ? last - first : 0;
  }
  return count > 0 ? T(1) / static_cast<T>(count) : T(0);
}

template <typename T>
__device__ void max_pool(const T* x, T* y, int32_t* indices, const WindowDevice w) {
  const int64_t out = w.out_plane(), in = w.in_plane();
  for (int64_t e = first_item(); e < w.planes * out; e += item_step()) {
    int64_t start[3];
    w.start(e % out, start);
    const T* plane = x + e / out * in;
    Wide<T> best = -(Wide<T>(1) / Wide<T>(0));
    int32_t at = -1;
    for_inside(w, start, [&](int64_t p) {
      const Wide<T> v = wide(plane[p]);
      if (at < 0 || v > best || (v != v && best == best)) best = v, at = static_cast<int32_t>(p);
    });
    y[e] = narrow<T>(best);
    indices[e] = at < 0 ? 0 : at;
  }
}

template <typename T>
__device__ void max_pool_grad(const T* g, const int32_t* indices, T* dx, const WindowDevice w) {
  const int64_t out = w.out_plane(), in = w.in_plane();
  for (int64_t e = first_item(); e < w.planes * in; e += item_step()) {
    const int64_t plane = e / in * out, at = e % in;
    Wide<T> sum = 0;
    for_windows_at(w, at, [&](int64_t o) { sum += indices[plane + o] == at ? wide(g[plane + o]) : Wide<T>(0); });
    dx[e] = narrow<T>(sum);
  }
}

template <typename T>
__device__ void avg_pool(const T* x, T* y, const WindowDevice w) {
  const int64_t out = w.out_plane(), in = w.in_plane();
  for (int64_t e = first_item(); e < w.planes * out; e += item_step()) {
    int64_t start[3];
    w.start(e % out, start);
    Wide<T> sum = 0;
    for_inside(w, start, [&](int64_t p) { sum += wide(x[e / out * in + p]); });
    y[e] = narrow<T>(sum * weight<Wide<T>>(w, start));
  }
}

template <typename T>
__device__ void avg_pool_grad(const T* g, T* dx, const WindowDevice w) {
  const int64_t out = w.out_plane(), in = w.in_plane();
  for (int64_t e = first_item(); e < w.planes * in; e += item_step()) {
    Wide<T> sum = 0;
    for_windows_at(w, e % in, [&](int64_t o) {
      int64_t start[3];
      w.start(o, start);
      sum += wide(g[e / in * out + o]) * weight<Wide<T>>(w, start);
    });
    dx[e] = narrow<T>(sum);
  }
}

}  // namespace

#define PARTITA_POOLS(T, NAME)                                                                                  \
  KERNEL void max_pool_##NAME(const T* x, T* y, int32_t* i, WindowDevice w) { max_pool(x, y, i, w); }           \
  KERNEL void max_pool_grad_##NAME(const T* g, const int32_t* i, T* dx, WindowDevice w) {                       \
    max_pool_grad(g, i, dx, w);                                                                                 \
  }                                                                                                             \
  KERNEL void avg_pool_##NAME(const T* x, T* y, WindowDevice w) { avg_pool(x, y, w); }                          \
  KERNEL void avg_pool_grad_##NAME(const T* g, T* dx, WindowDevice w) { avg_pool_grad(g, dx, w); }
PARTITA_POOLS(DeviceBf16, bf16)
PARTITA_POOLS(DeviceF16, f16)
PARTITA_POOLS(float, f32)
PARTITA_POOLS(double, f64)
#undef PARTITA_POOLS
