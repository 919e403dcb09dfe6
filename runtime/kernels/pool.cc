// max_pool, avg_pool and their gradients; one task per plane [spatial...] of a sample and channel.
#include <limits>

#include "runtime/kernels/table.h"
#include "runtime/kernels/tile_ops.h"
#include "runtime/kernels/window.h"

namespace partita::runtime {
namespace {

// Calls visit(output position, first tap of each dimension inside x, one past the last) for all windows of a plane.
template <typename F>
void for_windows(const Window& w, F&& visit) {
  int64_t position = 0;
  for (int64_t d = 0; d < w.out[0]; ++d) {
    for (int64_t h = 0; h < w.out[1]; ++h) {
      for (int64_t k = 0; k < w.out[2]; ++k) {
        const Window::Dims start = {d * w.stride[0] - w.low[0], h * w.stride[1] - w.low[1], k * w.stride[2] - w.low[2]};
        visit(position++, start);
      }
    }
  }
}
// Calls visit(position in x's plane) for the taps of a window that lie inside x, in row-major order.
template <typename F>
void for_inside(const Window& w, const Window::Dims& start, F&& visit) {
  for (int64_t kd = 0; kd < w.kernel[0]; ++kd) {
    const int64_t d = start[0] + kd * w.dilation[0];
    if (d < 0 || d >= w.in[0]) continue;
    for (int64_t kh = 0; kh < w.kernel[1]; ++kh) {
      const int64_t h = start[1] + kh * w.dilation[1];
      if (h < 0 || h >= w.in[1]) continue;
      for (int64_t kw = 0; kw < w.kernel[2]; ++kw) {
        const int64_t k = start[2] + kw * w.dilation[2];
        if (k >= 0 && k < w.in[2]) visit((d * w.in[1] + h) * w.in[2] + k);
      }
    }
  }
}

#include "runtime/kernels/pool_rows.inc"

// The larger of several elements, the first of equal ones, a NaN before all: by rows of x first, then over rows. A row
// is taken apart into those of its elements that lie a stride from each other, so that neighbouring outputs read
// neighbours.
template <typename T>
class MaxPool {
 public:
  explicit MaxPool(const Window& w) : w_(w) {
    const int64_t padded = std::max<int64_t>(0, (w.out[2] - 1) * w.stride[2] + (w.kernel[2] - 1) * w.dilation[2] + 1);
    line_ = (padded + w.stride[2] - 1) / w.stride[2];
    from_.assign(static_cast<size_t>(w.kernel[2] * w.out[2]), -1);
    for (int64_t k = 0; k < w.kernel[2]; ++k) {
      int64_t begin, end;
      w.valid(2, k, begin, end);
      for (int64_t j = begin; j < end; ++j)
        from_[static_cast<size_t>(k * w.out[2] + j)] =
            static_cast<int32_t>(j * w.stride[2] + k * w.dilation[2] - w.low[2]);
    }
    if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>)
      every_ = tile_ops<T>().every, take_larger_ = tile_ops<T>().take_larger;
  }

  void run(const T* x, T* y, int32_t* indices) const {
    const int64_t planes = w_.batch * w_.channels, in = w_.in_plane(), out = w_.out_plane();
#pragma omp parallel if (worth_threads(planes * (in + out * w_.kernel_size())))
    {
      Scratch scratch = make_scratch();
#pragma omp for schedule(static)
      for (int64_t p = 0; p < planes; ++p) plane(x + p * in, y + p * out, indices + p * out, scratch);
    }
  }

 private:
  struct Scratch {
    std::vector<T> parts, best;  // of a row of x; of each of its rows, for each place of an output
    std::vector<int32_t> at;     // in the row
  };
  Scratch make_scratch() const {
    const auto rows = static_cast<size_t>(w_.in[0] * w_.in[1] * w_.out[2]);
    return {std::vector<T>(static_cast<size_t>(line_ * w_.stride[2])), std::vector<T>(rows),
            std::vector<int32_t>(rows)};
  }

  void plane(const T* x, T* y, int32_t* indices, Scratch& s) const {
    for (int64_t r = 0; r < w_.in[0] * w_.in[1]; ++r) {
      take_apart(x + r * w_.in[2], s.parts.data());
      T* best = s.best.data() + r * w_.out[2];
      int32_t* at = s.at.data() + r * w_.out[2];
      begin(best, at);
      for (int64_t k = 0; k < w_.kernel[2]; ++k) {
        const int64_t tap = k * w_.dilation[2];
        take_larger_(best, at, s.parts.data() + tap % w_.stride[2] * line_ + tap / w_.stride[2],
                     from_.data() + k * w_.out[2], 0, w_.out[2]);
      }
    }
    for (int64_t r = 0; r < w_.out[0] * w_.out[1]; ++r)
      join_rows(r / w_.out[1], r % w_.out[1], s, y + r * w_.out[2], indices + r * w_.out[2]);
  }

  void begin(T* best, int32_t* at) const {
    std::fill_n(best, w_.out[2],
                std::is_integral_v<T> ? std::numeric_limits<T>::lowest() : T(-std::numeric_limits<float>::infinity()));
    std::fill_n(at, w_.out[2], -1);
  }

  // What is outside of x stays as it is: no output takes it.
  void take_apart(const T* row, T* parts) const {
    const int64_t stride = w_.stride[2];
    for (int64_t p = 0; p < stride; ++p) {
      const int64_t first = std::max<int64_t>(0, (w_.low[2] - p + stride - 1) / stride),
                    x = first * stride + p - w_.low[2];
      const int64_t count = x < w_.in[2] ? (w_.in[2] - 1 - x) / stride + 1 : 0;
      every_(parts + p * line_ + first, row + x, stride, std::min(count, line_ - first));
    }
  }

  void join_rows(int64_t d, int64_t h, const Scratch& s, T* best, int32_t* at) const {
    begin(best, at);
    for (int64_t kd = 0; kd < w_.kernel[0]; ++kd) {
      const int64_t in_d = d * w_.stride[0] - w_.low[0] + kd * w_.dilation[0];
      if (in_d < 0 || in_d >= w_.in[0]) continue;
      for (int64_t kh = 0; kh < w_.kernel[1]; ++kh) {
        const int64_t in_h = h * w_.stride[1] - w_.low[1] + kh * w_.dilation[1];
        if (in_h < 0 || in_h >= w_.in[1]) continue;
        const int64_t row = in_d * w_.in[1] + in_h;
        take_larger_(best, at, s.best.data() + row * w_.out[2], s.at.data() + row * w_.out[2],
                     static_cast<int32_t>(row * w_.in[2]), w_.out[2]);
      }
    }
    for (int64_t j = 0; j < w_.out[2]; ++j) at[j] = std::max(at[j], 0);
  }

  const Window w_;
  int64_t line_ = 0;           // elements of one part of a row
  std::vector<int32_t> from_;  // by tap and output: where it lies in the row; -1: outside
  decltype(&every<T>) every_ = every<T>;
  decltype(&take_larger<T>) take_larger_ = take_larger<T>;
};

template <typename T>
void max_pool_grad(const T* g, const int32_t* indices, T* dx, int64_t planes, int64_t in, int64_t out) {
  using A = Accumulator<T>;
#pragma omp parallel for schedule(static) if (worth_threads(planes * (in + out)))
  for (int64_t p = 0; p < planes; ++p) {
    std::fill_n(dx + p * in, in, T(0));
    for (int64_t i = 0; i < out; ++i) {
      const int64_t index = indices[p * out + i];
      if (index < 0 || index >= in) continue;
      T& to = dx[p * in + index];
      to = static_cast<T>(static_cast<A>(static_cast<A>(to) + static_cast<A>(g[p * out + i])));
    }
  }
}

// 1 / (elements averaged): all of the window inside the padded x, or only those inside x.
struct AveragePool {
  Window window;
  bool include_pad = false;

  double weight(const Window::Dims& start) const {
    const Window& w = window;
    int64_t count = 1;
    for (size_t d = 0; d < 3; ++d) {
      const int64_t first = include_pad ? start[d] : std::max<int64_t>(start[d], 0);
      const int64_t last = std::min(start[d] + w.kernel[d], w.in[d] + (include_pad ? w.high[d] : 0));
      count *= std::max<int64_t>(last - first, 0);
    }
    return count > 0 ? 1.0 / static_cast<double>(count) : 0.0;
  }
};

template <typename T>
void avg_pool(const AveragePool& pool, const T* x, T* y) {
  using A = Accumulator<T>;
  const Window& w = pool.window;
  const int64_t planes = w.batch * w.channels, in = w.in_plane(), out = w.out_plane();
#pragma omp parallel for schedule(static) if (worth_threads(planes * out * w.kernel_size()))
  for (int64_t p = 0; p < planes; ++p) {
    for_windows(w, [&](int64_t to, const Window::Dims& start) {
      A sum = 0;
      for_inside(w, start, [&](int64_t at) { sum += static_cast<A>(x[p * in + at]); });
      y[p * out + to] = static_cast<T>(static_cast<A>(sum * static_cast<A>(pool.weight(start))));
    });
  }
}

template <typename T>
void avg_pool_grad(const AveragePool& pool, const T* g, T* dx) {
  using A = Accumulator<T>;
  const Window& w = pool.window;
  const int64_t planes = w.batch * w.channels, in = w.in_plane(), out = w.out_plane();
#pragma omp parallel for schedule(static) if (worth_threads(planes * out * w.kernel_size()))
  for (int64_t p = 0; p < planes; ++p) {
    std::vector<A> sum(static_cast<size_t>(in), A(0));
    for_windows(w, [&](int64_t from, const Window::Dims& start) {
      const A share = static_cast<A>(g[p * out + from]) * static_cast<A>(pool.weight(start));
      for_inside(w, start, [&](int64_t at) { sum[static_cast<size_t>(at)] += share; });
    });
    for (int64_t i = 0; i < in; ++i) dx[p * in + i] = static_cast<T>(sum[static_cast<size_t>(i)]);
  }
}

bool same_planes(const Shape& x, const Shape& y) {
  return x.size() >= 3 && y.size() == x.size() && x[0] == y[0] && x[1] == y[1];
}

}  // namespace

Kernel make_max_pool(const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(1, 1, 2));
  const Shape &x = r.in(0).shape, &y = r.out(0).shape;
  if (!same_planes(x, y) || r.out(1).shape != y || r.out(1).dtype != DType::kI32 || r.out(0).dtype != r.dtype())
    return r.error("x -> y and i32 indices of y's shape");
  PARTITA_ASSIGN_OR_RETURN(const Window w, Window::make(r, x, y, r.ints("kernel"), false));
  if (w.in_plane() > std::numeric_limits<int32_t>::max()) return r.unsupported();
  Kernel kernel = r.unsupported();
  with_number_type(r.dtype(), [&]<typename T>(T) {
    kernel = make_kernel([pool = MaxPool<T>(w)](std::span<std::byte* const> b) {
      pool.run(as<T>(b[0]), as<T>(b[1]), as<int32_t>(b[2]));
    });
  });
  return kernel;
}

Kernel make_max_pool_grad(const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(2, 2, 1));
  const Shape &x = r.out(0).shape, &y = r.in(0).shape;
  if (!same_planes(x, y) || r.in(1).shape != y || r.dtype(1) != DType::kI32 || r.out(0).dtype != r.dtype())
    return r.error("a gradient and i32 indices of its shape");
  const int64_t planes = x[0] * x[1], in = product(x, 2, x.size()), out = product(y, 2, y.size());
  if (in == 0) return r.error("spatial dims that are not empty");
  Kernel kernel = r.unsupported();
  with_float_type(r.dtype(), [&]<typename T>(T) {
    kernel = make_kernel([=](std::span<std::byte* const> b) {
      max_pool_grad(as<T>(b[0]), as<int32_t>(b[1]), as<T>(b[2]), planes, in, out);
    });
  });
  return kernel;
}

Kernel make_avg_pool(const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(1, 1, 1));
  const Shape &x = r.in(0).shape, &y = r.out(0).shape;
  if (!same_planes(x, y) || r.out(0).dtype != r.dtype()) return r.error("x -> y with the same samples and channels");
  AveragePool pool{.include_pad = r.i("count_include_pad", 0) != 0};
  PARTITA_ASSIGN_OR_RETURN(pool.window, Window::make(r, x, y, r.ints("kernel"), false));
  Kernel kernel = r.unsupported();
  with_float_type(r.dtype(), [&]<typename T>(T) {
    kernel = make_kernel([pool](std::span<std::byte* const> b) { avg_pool(pool, as<T>(b[0]), as<T>(b[1])); });
  });
  return kernel;
}

Kernel make_avg_pool_grad(const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(1, 1, 1));
  const Shape &x = r.out(0).shape, &y = r.in(0).shape;
  if (!same_planes(x, y) || r.out(0).dtype != r.dtype())
    return r.error("a gradient with the same samples and channels");
  AveragePool pool{.include_pad = r.i("count_include_pad", 0) != 0};
  PARTITA_ASSIGN_OR_RETURN(pool.window, Window::make(r, x, y, r.ints("kernel"), false));
  Kernel kernel = r.unsupported();
  with_float_type(r.dtype(), [&]<typename T>(T) {
    kernel = make_kernel([pool](std::span<std::byte* const> b) { avg_pool_grad(pool, as<T>(b[0]), as<T>(b[1])); });
  });
  return kernel;
}

}  // namespace partita::runtime
