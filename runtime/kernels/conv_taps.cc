// On a plane of 2 x 2 a window of 3 x 3 has more taps in the padding than inside: of the 36 pairs of a tap and an
// output 16 count. So each tap's weights are a matrix [o, i], and each pair of an output place p and the input place q
// that a tap reaches is a product with the whole batch:
//
//   y[p] [o, n]     += w[tap] [o, i] x[q] [i, n]
//   dx[q] [i, n]    += w[tap]^T [i, o] g[p] [o, n]
//   dw[tap] [o, i]  += g[p] [o, n] x[q]^T [n, i]
//
// Weights lie as [o, i, tap]. A thread has a block of rows of the result: it sorts that block's weights by tap in a
// scratch that stays in its cache, or sorts the result back. Activations are sorted by place first.
#include "runtime/kernels/conv_taps.h"

#include <omp.h>

#include "runtime/kernels/tile_ops.h"

namespace partita::runtime {
namespace {

constexpr int64_t kRows = 24;  // of a block
constexpr int64_t kLine = 16;  // f32 of a cache line

int64_t padded(int64_t n) { return (n + kLine - 1) / kLine * kLine; }

struct Pair {
  int64_t out, in;  // places within a plane
};

// The pairs of each tap.
std::vector<std::vector<Pair>> pairs_of(const Window& w) {
  std::vector<std::vector<Pair>> taps;
  for (int64_t d = 0; d < w.kernel[0]; ++d) {
    for (int64_t h = 0; h < w.kernel[1]; ++h) {
      for (int64_t k = 0; k < w.kernel[2]; ++k) {
        std::vector<Pair>& pairs = taps.emplace_back();
        Window::Dims first, last;
        const Window::Dims tap = {d, h, k};
        for (size_t i = 0; i < 3; ++i) w.valid(i, tap[i], first[i], last[i]);
        for (int64_t x = first[0]; x < last[0]; ++x) {
          for (int64_t y = first[1]; y < last[1]; ++y) {
            for (int64_t z = first[2]; z < last[2]; ++z) {
              const Window::Dims out = {x, y, z};
              Window::Dims in;
              for (size_t i = 0; i < 3; ++i) in[i] = out[i] * w.stride[i] + tap[i] * w.dilation[i] - w.low[i];
              pairs.push_back(
                  {(out[0] * w.out[1] + out[1]) * w.out[2] + out[2], (in[0] * w.in[1] + in[1]) * w.in[2] + in[2]});
            }
          }
        }
      }
    }
  }
  return taps;
}

// The lines' remainders are zeros.
struct Sorted {
  int64_t batch, channels, plane;

  // to[place][channel][sample], samples padded.
  void by_channel(const float* x, float* to) const {
    const int64_t row = padded(batch);
#pragma omp for schedule(static)
    for (int64_t c = 0; c < channels; ++c) {
      for (int64_t p = 0; p < plane; ++p) {
        float* line = to + (p * channels + c) * row;
        for (int64_t n = 0; n < batch; ++n) line[n] = x[(n * channels + c) * plane + p];
        std::fill(line + batch, line + row, 0.0f);
      }
    }
  }
  // to[place][sample][channel], channels padded.
  void by_sample(const float* x, float* to) const {
    const int64_t row = padded(channels);
#pragma omp for schedule(static)
    for (int64_t n = 0; n < batch; ++n) {
      for (int64_t p = 0; p < plane; ++p) {
        float* line = to + (p * batch + n) * row;
        for (int64_t c = 0; c < channels; ++c) line[c] = x[(n * channels + c) * plane + p];
        std::fill(line + channels, line + row, 0.0f);
      }
    }
  }
};

// to[t * stride + i] = from[i * taps + t] and back; most windows have 9 taps, known when this is compiled.
template <int64_t kTaps>
void deal_of(const float* from, int64_t count, int64_t taps, float* to, int64_t stride) {
  if (kTaps != 0) taps = kTaps;
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t t = 0; t < taps; ++t) to[t * stride + i] = from[i * taps + t];
  }
}
void deal(const float* from, int64_t count, int64_t taps, float* to, int64_t stride) {
  taps == 9 ? deal_of<9>(from, count, taps, to, stride) : deal_of<0>(from, count, taps, to, stride);
}
template <int64_t kTaps>
void collect_of(const float* from, int64_t stride, int64_t count, int64_t taps, float* to) {
  if (kTaps != 0) taps = kTaps;
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t t = 0; t < taps; ++t) to[i * taps + t] = from[t * stride + i];
  }
}
void collect(const float* from, int64_t stride, int64_t count, int64_t taps, float* to) {
  taps == 9 ? collect_of<9>(from, stride, count, taps, to) : collect_of<0>(from, stride, count, taps, to);
}

class ByTaps final : public LibraryKernel {
 public:
  ByTaps(const KernelRequest& r, const Convolution& c, Direction direction)
      : scratch_(r.scratch()),
        direction_(direction),
        batch_(c.window.batch),
        in_plane_(c.window.in_plane()),
        out_plane_(c.window.out_plane()),
        inputs_(c.window.channels),
        outputs_(c.outputs),
        taps_(pairs_of(c.window)) {
    const bool weight = direction == Direction::kGradWeight;
    ScratchLayout layout;
    auto floats = [&](int64_t count) { return layout.take(count * static_cast<int64_t>(sizeof(float))); };
    const int64_t x = in_plane_ * (weight ? batch_ * padded(inputs_) : inputs_ * padded(batch_)),
                  y = out_plane_ * (weight ? batch_ * padded(outputs_) : outputs_ * padded(batch_));
    if (direction != Direction::kGradData) x_at_ = floats(x);
    if (direction != Direction::kForward) y_at_ = floats(y);
    const int64_t count = static_cast<int64_t>(taps_.size()),
                  inner = direction == Direction::kGradData ? outputs_ : padded(inputs_),
                  plane = direction == Direction::kForward ? out_plane_ : in_plane_;
    // The taps' lines fall into different sets of the cache.
    tap_size_ = kRows * inner + kLine;
    weights_ = count * tap_size_;
    block_ = weights_ + (weight ? 0 : plane * kRows * padded(batch_));
    blocks_at_ = floats(block_ * std::max(r.threads(), omp_get_max_threads()));
    scratch_->reserve(layout.bytes());
  }

  void run(std::span<std::byte* const> b) override {
    auto at = [&](int64_t offset) { return as<float>(scratch_->data() + offset); };
    float *x = at(x_at_), *y = at(y_at_);
    const Sorted of_x{batch_, inputs_, in_plane_}, of_y{batch_, outputs_, out_plane_};
    const int64_t rows = direction_ == Direction::kGradData ? inputs_ : outputs_;
#pragma omp parallel
    {
      if (direction_ == Direction::kForward) of_x.by_channel(as<float>(b[0]), x);
      if (direction_ == Direction::kGradData) of_y.by_channel(as<float>(b[0]), y);
      if (direction_ == Direction::kGradWeight) {
        of_y.by_sample(as<float>(b[0]), y);
        of_x.by_sample(as<float>(b[1]), x);
      }
      float* block = at(blocks_at_) + omp_get_thread_num() * block_;
#pragma omp for schedule(static)
      for (int64_t first = 0; first < rows; first += kRows) {
        const int64_t count = std::min(kRows, rows - first);
        if (direction_ == Direction::kForward) forward(first, count, x, as<float>(b[1]), block, as<float>(b[2]));
        if (direction_ == Direction::kGradData) grad_data(first, count, y, as<float>(b[1]), block, as<float>(b[2]));
        if (direction_ == Direction::kGradWeight) grad_weight(first, count, y, x, block, as<float>(b[2]));
      }
    }
  }

 private:
  // Output channels [first, first + rows).
  void forward(int64_t first, int64_t rows, const float* x, const float* w, float* block, float* y) const {
    const int64_t taps = static_cast<int64_t>(taps_.size()), row = padded(batch_);
    for (int64_t o = 0; o < rows; ++o) {
      const float* from = w + (first + o) * inputs_ * taps;
      deal(from, inputs_, taps, block + o * inputs_, tap_size_);
    }
    float* sums = block + weights_;
    multiply(rows, block, inputs_, 1, x, inputs_, sums, out_plane_, &Pair::out, &Pair::in);
    for (int64_t n = 0; n < batch_; ++n) {
      for (int64_t o = 0; o < rows; ++o) {
        float* to = y + (n * outputs_ + first + o) * out_plane_;
        for (int64_t p = 0; p < out_plane_; ++p) to[p] = sums[(p * kRows + o) * row + n];
      }
    }
  }

  // Input channels [first, first + rows).
  void grad_data(int64_t first, int64_t rows, const float* g, const float* w, float* block, float* dx) const {
    const int64_t taps = static_cast<int64_t>(taps_.size()), row = padded(batch_);
    for (int64_t o = 0; o < outputs_; ++o) {
      const float* from = w + (o * inputs_ + first) * taps;
      deal(from, rows, taps, block + o * kRows, tap_size_);
    }
    float* sums = block + weights_;
    multiply(rows, block, 1, kRows, g, outputs_, sums, in_plane_, &Pair::in, &Pair::out);
    for (int64_t n = 0; n < batch_; ++n) {
      for (int64_t i = 0; i < rows; ++i) {
        float* to = dx + (n * inputs_ + first + i) * in_plane_;
        for (int64_t p = 0; p < in_plane_; ++p) to[p] = sums[(p * kRows + i) * row + n];
      }
    }
  }

  // sums[pair.*to] [rows, n] += weights[tap] [rows, inner] x[pair.*from] [inner, n] for all pairs.
  void multiply(int64_t rows, const float* weights, int64_t a_row, int64_t a_column, const float* x, int64_t inner,
                float* sums, int64_t plane, int64_t Pair::*to, int64_t Pair::*from) const {
    const int64_t row = padded(batch_);
    std::fill_n(sums, plane * kRows * row, 0.0f);
    for (size_t t = 0; t < taps_.size(); ++t) {
      for (const Pair& pair : taps_[t])
        tile_ops<float>().gemm(sums + pair.*to * kRows * row, row, weights + static_cast<int64_t>(t) * tap_size_, a_row,
                               a_column, x + pair.*from * inner * row, row, rows, row, inner, true);
    }
  }

  // Output channels [first, first + rows).
  void grad_weight(int64_t first, int64_t rows, const float* g, const float* x, float* block, float* dw) const {
    const int64_t taps = static_cast<int64_t>(taps_.size()), row = padded(inputs_), g_row = padded(outputs_);
    for (int64_t t = 0; t < taps; ++t) {
      float* sums = block + t * tap_size_;
      const std::vector<Pair>& pairs = taps_[static_cast<size_t>(t)];
      if (pairs.empty()) std::fill_n(sums, kRows * row, 0.0f);
      for (size_t k = 0; k < pairs.size(); ++k)
        tile_ops<float>().gemm(sums, row, g + pairs[k].out * batch_ * g_row + first, 1, g_row,
                               x + pairs[k].in * batch_ * row, row, rows, row, batch_, k > 0);
    }
    for (int64_t o = 0; o < rows; ++o) {
      float* to = dw + (first + o) * inputs_ * taps;
      collect(block + o * row, tap_size_, inputs_, taps, to);
    }
  }

  std::shared_ptr<KernelScratch> scratch_;
  Direction direction_;
  int64_t batch_, in_plane_, out_plane_, inputs_, outputs_;
  std::vector<std::vector<Pair>> taps_;
  int64_t x_at_ = 0, y_at_ = 0, blocks_at_ = 0;
  int64_t tap_size_ = 0, weights_ = 0, block_ = 0;  // floats of a block's tap, of all taps, and with its sums
};

}  // namespace

// By times on a processor with AVX-512, planes of 2 x 2 to 8 x 8. oneDNN leaves out the taps in the padding along rows;
// it is slow in gradients of weights on small planes, and in strided gradients of data.
bool is_faster_by_taps(const Convolution& c, Direction direction) {
  const Window& w = c.window;
  if (c.groups != 1 || w.kernel_size() == 1 || w.out_plane() > 16 || std::min(w.channels, c.outputs) < kLine)
    return false;
  int64_t pairs = 0;
  for (const std::vector<Pair>& tap : pairs_of(w)) pairs += static_cast<int64_t>(tap.size());
  const double inside = static_cast<double>(pairs) / static_cast<double>(w.kernel_size() * w.out_plane());
  if (direction == Direction::kGradWeight) return inside < 0.9;
  const bool strided = product(w.stride) > 1;
  const double most = direction == Direction::kGradData && strided ? 0.7 : 0.5;
  return inside * static_cast<double>(padded(w.batch)) / static_cast<double>(w.batch) < most;
}

Kernel make_conv_by_taps(const KernelRequest& r, const Convolution& c, Direction direction) {
  return std::make_unique<ByTaps>(r, c, direction);
}

}  // namespace partita::runtime
