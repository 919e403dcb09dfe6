// Pooling and its gradients: a thread has one output; or one element of an average's gradient, or kPoolSpan neighbours of
// a maximum's, and goes through the windows that hold them, in order.
#include "runtime/cuda/kernels/device.h"
#include "runtime/cuda/kernels/element.h"

namespace {

// Calls visit(position in x's plane) for the taps of a window inside x, in row-major order.
template <typename F>
__device__ void for_inside(const WindowDevice& w, const int32_t* start, F visit) {
  int32_t first[3], end[3];
  for (int d = 0; d < 3; ++d) {
    const int32_t step = w.dilation[d];
    first[d] = start[d] < 0 ? start[d] + w.by_dilation[d](step - 1 - start[d]) * step : start[d];
    end[d] = min(w.in[d], start[d] + w.kernel[d] * step);
  }
  for (int32_t a = first[0]; a < end[0]; a += w.dilation[0]) {
    for (int32_t b = first[1]; b < end[1]; b += w.dilation[1]) {
      const int32_t row = (a * w.in[1] + b) * w.in[2];
      for (int32_t c = first[2]; c < end[2]; c += w.dilation[2]) visit(row + c);
    }
  }
}

// Calls visit(place of the window) for the windows that reach over position `at` of a plane, or one of the `span` along
// the last dimension that begin there, in row-major order.
template <typename F>
__device__ void for_windows_over(const WindowDevice& w, const int32_t* at, int32_t span, F visit) {
  int32_t first[3], end[3];
  for (int d = 0; d < 3; ++d) {
    const int32_t begin = at[d] + w.low[d], reach = (w.kernel[d] - 1) * w.dilation[d];
    const int32_t last = begin + (d == 2 ? span - 1 : 0);
    first[d] = begin <= reach ? 0 : w.by_stride[d](begin - reach + w.stride[d] - 1);
    end[d] = last < 0 ? 0 : min(w.out[d], w.by_stride[d](last) + 1);
  }
  int32_t window[3];
  for (window[0] = first[0]; window[0] < end[0]; ++window[0]) {
    for (window[1] = first[1]; window[1] < end[1]; ++window[1]) {
      for (window[2] = first[2]; window[2] < end[2]; ++window[2]) visit(window);
    }
  }
}

__device__ int32_t place(const int32_t* size, const int32_t* at) { return (at[0] * size[1] + at[1]) * size[2] + at[2]; }

// Whether a window has a tap at `at`, which it reaches over.
__device__ bool has_tap(const WindowDevice& w, const int32_t* window, const int32_t* at) {
  bool has = true;
  for (int d = 0; d < 3; ++d) {
    const int32_t away = at[d] - w.start(d, window[d]);
    has = has && w.by_dilation[d](away) * w.dilation[d] == away;
  }
  return has;
}

// Where element `e` of all planes is: in which plane, of which channel, and where there.
struct Place {
  int32_t plane, channel, at[3];
};
__device__ Place find(const WindowDevice& w, const Divisor* by, int32_t e) {
  Place p;
  int32_t rest = w.by_channels(e);
  p.channel = e - rest * w.channels;
  for (int d = 3; d-- > 0;) {
    e = rest;
    rest = by[d](e);
    p.at[d] = e - rest * static_cast<int32_t>(by[d].divisor);
  }
  p.plane = rest;
  return p;
}

// 1 / (elements averaged): all of the window inside the padded x, or only those inside x.
template <typename T>
__device__ T weight(const WindowDevice& w, const int32_t* start) {
  int32_t count = 1;
  for (int d = 0; d < 3; ++d) {
    const int32_t first = w.include_pad || start[d] > 0 ? start[d] : 0;
    const int32_t last = min(start[d] + w.kernel[d], w.in[d] + (w.include_pad ? w.high[d] : 0));
    count *= last > first ? last - first : 0;
  }
  return count > 0 ? T(1) / static_cast<T>(count) : T(0);
}

template <typename T>
__device__ void max_pool(const T* x, T* y, int32_t* indices, const WindowDevice& w) {
  const int64_t total = int64_t{w.planes} * w.out_plane() * w.channels;
  for (int64_t e = first_item(); e < total; e += item_step()) {
    const Place p = find(w, w.by_out, static_cast<int32_t>(e));
    const T* plane = x + int64_t{p.plane} * w.in_plane() * w.channels + p.channel;
    int32_t start[3];
    for (int d = 0; d < 3; ++d) start[d] = w.start(d, p.at[d]);
    Wide<T> best = -(Wide<T>(1) / Wide<T>(0));
    int32_t at = -1;
    for_inside(w, start, [&](int32_t tap) {
      const Wide<T> v = wide(plane[tap * w.channels]);
      if (at < 0 || v > best || (v != v && best == best)) best = v, at = tap;
    });
    y[e] = narrow<T>(best);
    indices[e] = at < 0 ? 0 : at;
  }
}

template <typename T>
__device__ void max_pool_grad(const T* g, const int32_t* indices, T* dx, const WindowDevice& w) {
  struct alignas(sizeof(T) * kPoolSpan > 16 ? 16 : sizeof(T) * kPoolSpan) Span {
    T of[kPoolSpan];
  };
  const bool whole = w.in[2] % kPoolSpan == 0 && w.channels == 1;
  const int64_t total = int64_t{w.planes} * w.in[0] * w.in[1] * w.spans() * w.channels;
  const Divisor by[] = {w.by_in[0], w.by_in[1], w.by_spans};
  for (int64_t e = first_item(); e < total; e += item_step()) {
    Place p = find(w, by, static_cast<int32_t>(e));
    int32_t(&at)[3] = p.at;
    at[2] *= kPoolSpan;
    const int32_t position = place(w.in, at);
    const int64_t out = int64_t{p.plane} * w.out_plane() * w.channels + p.channel;
    Wide<T> sum[kPoolSpan] = {};
    for_windows_over(w, at, kPoolSpan, [&](const int32_t* window) {
      const int64_t o = out + int64_t{place(w.out, window)} * w.channels;
      const int32_t hit = indices[o] - position;
      const Wide<T> v = wide(g[o]);
      for (int j = 0; j < kPoolSpan; ++j) sum[j] += hit == j ? v : Wide<T>(0);
    });
    T* to = dx + (int64_t{p.plane} * w.in_plane() + position) * w.channels + p.channel;
    Span made;
    for (int j = 0; j < kPoolSpan; ++j) made.of[j] = narrow<T>(sum[j]);
    if (whole) {
      *reinterpret_cast<Span*>(to) = made;
    } else {
      for (int j = 0; j < kPoolSpan; ++j) {
        if (at[2] + j < w.in[2]) to[j * w.channels] = made.of[j];
      }
    }
  }
}

template <typename T>
__device__ void avg_pool(const T* x, T* y, const WindowDevice& w) {
  const int64_t total = int64_t{w.planes} * w.out_plane() * w.channels;
  for (int64_t e = first_item(); e < total; e += item_step()) {
    const Place p = find(w, w.by_out, static_cast<int32_t>(e));
    const T* plane = x + int64_t{p.plane} * w.in_plane() * w.channels + p.channel;
    int32_t start[3];
    for (int d = 0; d < 3; ++d) start[d] = w.start(d, p.at[d]);
    Wide<T> sum = 0;
    for_inside(w, start, [&](int32_t tap) { sum += wide(plane[tap * w.channels]); });
    y[e] = narrow<T>(sum * weight<Wide<T>>(w, start));
  }
}

template <typename T>
__device__ void avg_pool_grad(const T* g, T* dx, const WindowDevice& w) {
  const int64_t total = int64_t{w.planes} * w.in_plane() * w.channels;
  for (int64_t e = first_item(); e < total; e += item_step()) {
    const Place p = find(w, w.by_in, static_cast<int32_t>(e));
    const int32_t(&at)[3] = p.at;
    const T* plane = g + int64_t{p.plane} * w.out_plane() * w.channels + p.channel;
    Wide<T> sum = 0;
    for_windows_over(w, at, 1, [&](const int32_t* window) {
      if (!has_tap(w, window, at)) return;
      int32_t start[3];
      for (int d = 0; d < 3; ++d) start[d] = w.start(d, window[d]);
      sum += wide(plane[place(w.out, window) * w.channels]) * weight<Wide<T>>(w, start);
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
