// conv, conv_grad_data, conv_grad_weight: oneDNN for f32 and 16-bit floats, in whatever layouts it prefers; loops for
// f64 and the rest.
//
// Operands are dense row-major (NCHW). Where oneDNN wants another layout, a reorder goes before or after: it moves each
// element once, while the convolution reads it once per kernel tap and output channel.
#include <omp.h>

#include <unordered_map>

#include "runtime/kernels/compute_operand.h"
#include "runtime/kernels/conv_taps.h"
#include "runtime/kernels/onednn.h"
#include "runtime/kernels/table.h"
#include "runtime/kernels/tile_ops.h"

namespace partita::runtime {
namespace {

absl::StatusOr<Convolution> make_convolution(const KernelRequest& r, const Shape& x, const Shape& weight,
                                             const Shape& y) {
  if (x.size() < 3 || weight.size() != x.size() || y.size() != x.size())
    return r.error("x [n, c, spatial...], w [o, c / groups, k...], y [n, o, spatial...]");
  Convolution c;
  c.groups = r.i("groups", 1);
  c.outputs = y[1];
  PARTITA_ASSIGN_OR_RETURN(c.window, Window::make(r, x, y, Shape(weight.begin() + 2, weight.end()), true));
  if (c.groups < 1 || x[1] % c.groups != 0 || y[1] % c.groups != 0 || weight[0] != y[1] ||
      weight[1] != x[1] / c.groups || x[0] != y[0])
    return r.error(cat("channels that fit ", c.groups, " groups"));
  return c;
}

// An operand as we hold it and as the primitive wants it.
class Side {
 public:
  Side() = default;
  Side(OneDnn& onednn, const dnnl::memory::desc& ours, const dnnl::memory::desc& theirs, bool is_output,
       ScratchLayout& layout)
      : outer_(ours, onednn.engine, nullptr) {
    if (ours == theirs) return;
    inner_ = dnnl::memory(theirs, onednn.engine, nullptr);
    at_ = layout.take(static_cast<int64_t>(theirs.get_size()));
    reorder_ = is_output ? dnnl::reorder(inner_, outer_) : dnnl::reorder(outer_, inner_);
  }
  const dnnl::memory& memory() const { return inner_ ? inner_ : outer_; }
  void bind(std::byte* buffer, std::byte* scratch) {
    outer_.set_data_handle(buffer);
    if (inner_) inner_.set_data_handle(scratch + at_);
  }
  void before(dnnl::stream& stream) {
    if (inner_) reorder_.execute(stream, outer_, inner_);
  }
  void after(dnnl::stream& stream) {
    if (inner_) reorder_.execute(stream, inner_, outer_);
  }

 private:
  dnnl::memory outer_, inner_;
  dnnl::reorder reorder_;
  int64_t at_ = 0;
};

class OneDnnConvolution final : public LibraryKernel {
  static constexpr int64_t kShortRow = 16, kSamples = 4;

 public:
  OneDnnConvolution(const Convolution& c, DType dtype, Direction direction, std::shared_ptr<KernelScratch> scratch)
      : scratch_(std::move(scratch)) {
    ScratchLayout layout;
    using dnnl::memory;
    const Window& w = c.window;
    const auto type = onednn_type(dtype);
    auto spatial = [&](memory::dims dims, const Window::Dims& from) {
      for (size_t d = 3 - w.rank; d < 3; ++d) dims.push_back(from[d]);
      return dims;
    };
    const memory::dims x = spatial({w.batch, w.channels}, w.in), y = spatial({w.batch, c.outputs}, w.out);
    const memory::dims weight = c.groups == 1 ? spatial({c.outputs, w.channels}, w.kernel)
                                              : spatial({c.groups, c.group_outputs(), c.group_inputs()}, w.kernel);
    memory::dims dilation = spatial({}, w.dilation);
    for (auto& d : dilation) --d;
    auto any = [&](const memory::dims& dims) { return memory::desc(dims, type, memory::format_tag::any); };
    // Channels last, where what it would choose itself is slow: without AVX-512 it keeps part of a row in registers,
    // and short ones are no multiple of that.
    const bool short_rows = !has_avx512() && dtype == DType::kF32 && direction == Direction::kForward &&
                            c.groups == 1 && w.kernel_size() > 1 && w.out[2] <= kShortRow && w.batch >= kSamples;
    auto activations = [&](const memory::dims& dims) {
      if (!short_rows) return any(dims);
      memory::dims strides(dims.size(), dims[1]);
      strides[1] = 1;
      for (size_t d = dims.size() - 1; d-- > 2;) strides[d] = strides[d + 1] * dims[d + 1];
      strides[0] = strides[2] * dims[2];
      return memory::desc(dims, type, strides);
    };
    auto plain = [&](const memory::dims& dims) {
      memory::dims strides(dims.size(), 1);
      for (size_t d = dims.size(); d-- > 1;) strides[d - 1] = strides[d] * dims[d];
      return memory::desc(dims, type, strides);
    };
    const auto algorithm = dnnl::algorithm::convolution_direct;
    const memory::dims strides = spatial({}, w.stride), low = spatial({}, w.low), high = spatial({}, w.high);
    const dnnl::convolution_forward::primitive_desc forward(onednn_.engine, dnnl::prop_kind::forward_training,
                                                            algorithm, activations(x), any(weight), activations(y),
                                                            strides, dilation, low, high);
    refuse_reference(forward, type);
    auto finish = [&](auto primitive, const memory::desc& first, const memory::dims& first_dims,
                      const memory::desc& second, const memory::dims& second_dims, const memory::desc& result,
                      const memory::dims& result_dims, int first_tag, int second_tag, int result_tag) {
      primitive_ = primitive;
      first_ = Side(onednn_, plain(first_dims), first, false, layout);
      second_ = Side(onednn_, plain(second_dims), second, false, layout);
      result_ = Side(onednn_, plain(result_dims), result, true, layout);
      tags_ = {first_tag, second_tag, result_tag};
    };
    if (direction == Direction::kForward) {
      finish(dnnl::convolution_forward(forward), forward.src_desc(), x, forward.weights_desc(), weight,
             forward.dst_desc(), y, DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST);
    } else if (direction == Direction::kGradData) {
      const dnnl::convolution_backward_data::primitive_desc desc(onednn_.engine, algorithm, any(x), any(weight), any(y),
                                                                 strides, dilation, low, high, forward);
      refuse_reference(desc, type);
      finish(dnnl::convolution_backward_data(desc), desc.diff_dst_desc(), y, desc.weights_desc(), weight,
             desc.diff_src_desc(), x, DNNL_ARG_DIFF_DST, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_SRC);
    } else {
      const dnnl::convolution_backward_weights::primitive_desc desc(onednn_.engine, algorithm, any(x), any(weight),
                                                                    any(y), strides, dilation, low, high, forward);
      refuse_reference(desc, type);
      finish(dnnl::convolution_backward_weights(desc), desc.diff_dst_desc(), y, desc.src_desc(), x,
             desc.diff_weights_desc(), weight, DNNL_ARG_DIFF_DST, DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS);
    }
    scratch_->reserve(layout.bytes());
  }

  void run(std::span<std::byte* const> buffers) override {
    first_.bind(buffers[0], scratch_->data());
    second_.bind(buffers[1], scratch_->data());
    result_.bind(buffers[2], scratch_->data());
    first_.before(onednn_.stream);
    second_.before(onednn_.stream);
    primitive_.execute(onednn_.stream,
                       {{tags_[0], first_.memory()}, {tags_[1], second_.memory()}, {tags_[2], result_.memory()}});
    result_.after(onednn_.stream);
    onednn_.stream.wait();
  }

 private:
  std::shared_ptr<KernelScratch> scratch_;
  OneDnn onednn_;
  dnnl::primitive primitive_;
  Side first_, second_, result_;
  std::array<int, 3> tags_{};
};

// A 1 x 1 convolution with stride 1 is a matrix product in our own layout: y[n] [o, hw] = w [o, c] x[n] [c, hw]. No
// reorder, which would cost as much as the product; small planes make too narrow products.
bool is_pointwise(const Convolution& c) {
  const Window::Dims ones = {1, 1, 1}, zeros = {0, 0, 0};
  return c.groups == 1 && c.window.in_plane() >= 128 && c.window.kernel == ones && c.window.stride == ones &&
         c.window.low == zeros && c.window.high == zeros;
}

void sgemm(bool ta, bool tb, int64_t m, int64_t n, int64_t k, const float* a, const float* b, float* c,
           bool accumulate) {
  onednn_sgemm(ta, tb, m, n, k, a, ta ? m : k, b, tb ? k : n, accumulate, c, n);
}

Kernel make_pointwise(const Convolution& c, Direction direction, int threads) {
  const int64_t batch = c.window.batch, plane = c.window.in_plane(), in = c.window.channels, out = c.outputs;
  if (direction == Direction::kGradWeight) {
    return make_kernel([=](std::span<std::byte* const> b) {
      const float *g = as<float>(b[0]), *x = as<float>(b[1]);
      for (int64_t n = 0; n < batch; ++n)
        sgemm(false, true, out, in, plane, g + n * out * plane, x + n * in * plane, as<float>(b[2]), n > 0);
    });
  }
  const bool forward = direction == Direction::kForward;
  const int64_t rows = forward ? out : in, inner = forward ? in : out;
  return make_kernel([=](std::span<std::byte* const> b) {
    const float *x = as<float>(b[0]), *w = as<float>(b[1]);
    float* y = as<float>(b[2]);
#pragma omp parallel for schedule(static) if (batch >= threads)
    for (int64_t n = 0; n < batch; ++n)
      sgemm(!forward, false, rows, plane, inner, w, x + n * inner * plane, y + n * rows * plane, false);
  });
}

// Calls row(in offset, out offset, count) for each row of outputs that tap (kd, kh, kw) reaches, offsets within a
// plane; inputs advance by the last stride.
template <typename F>
void for_tap_rows(const Window& w, int64_t kd, int64_t kh, int64_t kw, F&& row) {
  int64_t d0, d1, h0, h1, w0, w1;
  w.valid(0, kd, d0, d1);
  w.valid(1, kh, h0, h1);
  w.valid(2, kw, w0, w1);
  if (w1 <= w0) return;
  for (int64_t d = d0; d < d1; ++d) {
    const int64_t in_d = d * w.stride[0] + kd * w.dilation[0] - w.low[0];
    for (int64_t h = h0; h < h1; ++h) {
      const int64_t in_h = h * w.stride[1] + kh * w.dilation[1] - w.low[1],
                    in_w = w0 * w.stride[2] + kw * w.dilation[2] - w.low[2];
      row((in_d * w.in[1] + in_h) * w.in[2] + in_w, (d * w.out[1] + h) * w.out[2] + w0, w1 - w0);
    }
  }
}
template <typename F>
void for_taps(const Window& w, F&& tap) {
  int64_t index = 0;
  for (int64_t d = 0; d < w.kernel[0]; ++d) {
    for (int64_t h = 0; h < w.kernel[1]; ++h) {
      for (int64_t k = 0; k < w.kernel[2]; ++k) tap(index++, d, h, k);
    }
  }
}

template <typename T>
void plain_conv(const Convolution& c, const T* x, const T* weight, T* y) {
  using A = Accumulator<T>;
  const Window& w = c.window;
  const int64_t in = w.in_plane(), out = w.out_plane(), taps = w.kernel_size(), stride = w.stride[2];
#pragma omp parallel
  {
    std::vector<A> sum(static_cast<size_t>(out));
#pragma omp for schedule(static)
    for (int64_t task = 0; task < w.batch * c.outputs; ++task) {
      const int64_t n = task / c.outputs, o = task % c.outputs, group = o / c.group_outputs();
      std::fill(sum.begin(), sum.end(), A(0));
      for (int64_t i = 0; i < c.group_inputs(); ++i) {
        const T* plane = x + (n * w.channels + group * c.group_inputs() + i) * in;
        for_taps(w, [&](int64_t tap, int64_t kd, int64_t kh, int64_t kw) {
          const A factor = weight[(o * c.group_inputs() + i) * taps + tap];
          for_tap_rows(w, kd, kh, kw, [&](int64_t from, int64_t to, int64_t count) {
            for (int64_t j = 0; j < count; ++j)
              sum[static_cast<size_t>(to + j)] += factor * static_cast<A>(plane[from + j * stride]);
          });
        });
      }
      for (int64_t j = 0; j < out; ++j) y[task * out + j] = static_cast<T>(sum[static_cast<size_t>(j)]);
    }
  }
}

template <typename T>
void plain_grad_data(const Convolution& c, const T* g, const T* weight, T* dx) {
  using A = Accumulator<T>;
  const Window& w = c.window;
  const int64_t in = w.in_plane(), out = w.out_plane(), taps = w.kernel_size(), stride = w.stride[2];
#pragma omp parallel
  {
    std::vector<A> sum(static_cast<size_t>(in));
#pragma omp for schedule(static)
    for (int64_t task = 0; task < w.batch * w.channels; ++task) {
      const int64_t n = task / w.channels, i = task % w.channels, group = i / c.group_inputs();
      std::fill(sum.begin(), sum.end(), A(0));
      for (int64_t o = group * c.group_outputs(); o < (group + 1) * c.group_outputs(); ++o) {
        const T* plane = g + (n * c.outputs + o) * out;
        for_taps(w, [&](int64_t tap, int64_t kd, int64_t kh, int64_t kw) {
          const A factor = weight[(o * c.group_inputs() + i % c.group_inputs()) * taps + tap];
          for_tap_rows(w, kd, kh, kw, [&](int64_t to, int64_t from, int64_t count) {
            for (int64_t j = 0; j < count; ++j)
              sum[static_cast<size_t>(to + j * stride)] += factor * static_cast<A>(plane[from + j]);
          });
        });
      }
      for (int64_t j = 0; j < in; ++j) dx[task * in + j] = static_cast<T>(sum[static_cast<size_t>(j)]);
    }
  }
}

template <typename T>
void plain_grad_weight(const Convolution& c, const T* g, const T* x, T* dw) {
  using A = Accumulator<T>;
  const Window& w = c.window;
  const int64_t in = w.in_plane(), out = w.out_plane(), taps = w.kernel_size(), stride = w.stride[2];
#pragma omp parallel for schedule(static)
  for (int64_t task = 0; task < c.outputs * c.group_inputs(); ++task) {
    const int64_t o = task / c.group_inputs(), i = o / c.group_outputs() * c.group_inputs() + task % c.group_inputs();
    for_taps(w, [&](int64_t tap, int64_t kd, int64_t kh, int64_t kw) {
      A sum = 0;
      for (int64_t n = 0; n < w.batch; ++n) {
        const T *from = x + (n * w.channels + i) * in, *plane = g + (n * c.outputs + o) * out;
        for_tap_rows(w, kd, kh, kw, [&](int64_t at, int64_t to, int64_t count) {
          for (int64_t j = 0; j < count; ++j)
            sum += static_cast<A>(plane[to + j]) * static_cast<A>(from[at + j * stride]);
        });
      }
      dw[task * taps + tap] = static_cast<T>(sum);
    });
  }
}

// oneDNN shares out what a weight's gradient, or a product, adds up among the threads that there are.
class OnOneThread final : public LibraryKernel {
 public:
  // `make` prepares the kernel, on one thread as well.
  template <typename Make>
  static Kernel create(Make make) {
    const int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    Kernel kernel = make();
    omp_set_num_threads(threads);
    if (!kernel.ok()) return kernel;
    return std::make_unique<OnOneThread>(*std::move(kernel));
  }
  explicit OnOneThread(std::unique_ptr<LibraryKernel> kernel) : kernel_(std::move(kernel)) {}

  void run(std::span<std::byte* const> buffers) override {
    const int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    kernel_->run(buffers);
    omp_set_num_threads(threads);
  }

 private:
  std::unique_ptr<LibraryKernel> kernel_;
};

// `factory` makes the same step on other types.
Kernel make_any(const KernelRequest& r, Kernel (*factory)(const KernelRequest&), Direction direction, const Shape& x,
                const Shape& weight, const Shape& y) {
  if (r.dtype(1) != r.dtype() || r.dtype(2) != r.dtype()) return r.error("operands of one dtype");
  PARTITA_ASSIGN_OR_RETURN(const Convolution c, make_convolution(r, x, weight, y));
  const bool empty = product(x) == 0 || product(weight) == 0 || product(y) == 0;
  if (r.dtype() == DType::kF32 && !empty && is_pointwise(c)) return make_pointwise(c, direction, r.threads());
  // Chosen by the number of samples, among others, on which an ordered sum must not depend.
  const bool by_taps = r.i("ordered", 0) == 0 && r.dtype() == DType::kF32 && !empty && is_faster_by_taps(c, direction);
  if (by_taps) return make_conv_by_taps(r, c, direction);
  if (r.dtype() == DType::kBF16 && !empty && is_bf16_slow()) return make_widened(r, factory);
  if (onednn_type(r.dtype()) != dnnl::memory::data_type::undef && !empty) {
    Kernel kernel = make_library_convolution(r, c, r.dtype(), direction);
    if (kernel.ok()) return kernel;
    if (r.dtype() != DType::kF32) return make_widened(r, factory);
  }
  Kernel kernel = r.unsupported();
  with_float_type(r.dtype(), [&]<typename T>(T) {
    kernel = make_kernel([c, direction](std::span<std::byte* const> b) {
      if (direction == Direction::kForward)
        plain_conv(c, as<T>(b[0]), as<T>(b[1]), as<T>(b[2]));
      else if (direction == Direction::kGradData)
        plain_grad_data(c, as<T>(b[0]), as<T>(b[1]), as<T>(b[2]));
      else
        plain_grad_weight(c, as<T>(b[0]), as<T>(b[1]), as<T>(b[2]));
    });
  });
  return kernel;
}

Kernel make(const KernelRequest& r, Kernel (*factory)(const KernelRequest&), Direction direction, const Shape& x,
            const Shape& weight, const Shape& y) {
  auto any = [&] { return make_any(r, factory, direction, x, weight, y); };
  if (r.i("ordered", 0) == 0) return any();
  PARTITA_ASSIGN_OR_RETURN(const Convolution c, make_convolution(r, x, weight, y));
  return direction == Direction::kGradWeight || is_pointwise(c) ? OnOneThread::create(any) : any();
}

}  // namespace

Kernel make_library_convolution(const KernelRequest& r, const Convolution& c, DType dtype, Direction direction) {
  try {
    return std::make_unique<OneDnnConvolution>(c, dtype, direction, r.scratch());
  } catch (const dnnl::error& e) {
    if (e.status != dnnl_unimplemented) throw;
    return absl::UnimplementedError(e.what());
  }
}

Kernel make_conv(const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(2, 2, 1));
  return make(r, make_conv, Direction::kForward, r.in(0).shape, r.in(1).shape, r.out(0).shape);
}
Kernel make_conv_grad_data(const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(2, 2, 1));
  return make(r, make_conv_grad_data, Direction::kGradData, r.out(0).shape, r.in(1).shape, r.in(0).shape);
}
Kernel make_conv_grad_weight(const KernelRequest& r) {
  PARTITA_RETURN_IF_ERROR(r.expect_operands(2, 2, 1));
  return make(r, make_conv_grad_weight, Direction::kGradWeight, r.in(1).shape, r.out(0).shape, r.in(0).shape);
}

}  // namespace partita::runtime
