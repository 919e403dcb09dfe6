// A tap and a place of the output meet at one place of the input, or at none: near an edge the taps in the padding have
// nothing to do (on a plane of 2 x 2 a window of 3 x 3 has 16 such pairs of 36). Each pair of an output place p and the
// input place q that a tap reaches is a product with the whole batch:
//
//   y[p] [o, n]     += w[tap] [o, i] x[q] [i, n]
//   dx[q] [i, n]    += w[tap]^T [i, o] g[p] [o, n]
//   dw[tap] [o, i]  += g[p] [o, n] x[q]^T [n, i]
//
// Operands are packed once, so that what all pairs of one block of the result add up are runs of the same two panels:
// the block stays in registers from the first to the last. Weights lie as [o, i, tap].
#include "runtime/kernels/conv_taps.h"

#include <omp.h>

#include "runtime/kernels/tile_ops.h"
#include "runtime/kernels/tiling.h"
#include "runtime/kernels/transpose.h"

namespace partita::runtime {
namespace {

const TileOps<float>& ops() { return tile_ops<float>(); }

// Calls each(tap, place of the output, place of the input) for all pairs, by taps and then by outputs.
template <typename Each>
void for_pairs(const Window& w, const Each& each) {
  const auto flat = [](const Window::Dims& at, const Window::Dims& dims) {
    return (at[0] * dims[1] + at[1]) * dims[2] + at[2];
  };
  Window::Dims tap, out, first, last;
  const auto in = [&](size_t d) { return out[d] * w.stride[d] + tap[d] * w.dilation[d] - w.low[d]; };
  for (tap[0] = 0; tap[0] < w.kernel[0]; ++tap[0]) {
    for (tap[1] = 0; tap[1] < w.kernel[1]; ++tap[1]) {
      for (tap[2] = 0; tap[2] < w.kernel[2]; ++tap[2]) {
        for (size_t d = 0; d < 3; ++d) w.valid(d, tap[d], first[d], last[d]);
        for (out[0] = first[0]; out[0] < last[0]; ++out[0]) {
          for (out[1] = first[1]; out[1] < last[1]; ++out[1]) {
            for (out[2] = first[2]; out[2] < last[2]; ++out[2])
              each(flat(tap, w.kernel), flat(out, w.out), flat({in(0), in(1), in(2)}, w.in));
          }
        }
      }
    }
  }
}

// Of the pairs of a tap and an output, those that reach an input.
double share_inside(const Window& w) {
  double share = 1;
  for (size_t d = 0; d < 3; ++d) {
    int64_t pairs = 0, first, last;
    for (int64_t k = 0; k < w.kernel[d]; ++k) {
      w.valid(d, k, first, last);
      pairs += std::max<int64_t>(0, last - first);
    }
    share *= static_cast<double>(pairs) / static_cast<double>(w.kernel[d] * w.out[d]);
  }
  return share;
}

// Those that lie one after the other in both panels are one.
void join(std::vector<PanelRun>& runs, const PanelRun& run) {
  const int64_t a_line = ops().rows, b_line = ops().columns;
  if (!runs.empty() && runs.back().a + runs.back().k * a_line == run.a &&
      runs.back().b + runs.back().k * b_line == run.b)
    runs.back().k += run.k;
  else
    runs.push_back(run);
}

// Of blocks, all of one size but for the last one.
class BlockRuns {
 public:
  using Runs = std::vector<std::vector<PanelRun>>;

  // make(size of a block)
  template <typename Make>
  BlockRuns(const Tiling& blocks, const Make& make) : size_(blocks.extent(0)), whole_(make(size_)) {
    const int64_t last = blocks.extent(blocks.count() - 1);
    if (last != size_) last_ = make(last);
  }
  const Runs& of(int64_t size) const { return size == size_ ? whole_ : last_; }

 private:
  int64_t size_;
  Runs whole_, last_;
};

// y and dx: A is the weights of as many channels of the result as a block has rows, a panel of B some samples at one
// place. A is copied, not turned, which takes longer than it saves: weights are large where planes are small.
//   A [channels of the operand, in blocks][rows]: for y [row][channel][tap], for dx [channel][row][tap]
//   B [panel][channels of the operand, in blocks][place][channel][columns]
class ByPlaces final : public LibraryKernel {
 public:
  ByPlaces(const KernelRequest& r, const Convolution& c, Direction direction)
      : scratch_(r.scratch()),
        forward_(direction == Direction::kForward),
        batch_(c.window.batch),
        taps_(c.window.kernel_size()),
        from_{forward_ ? c.window.channels : c.outputs, forward_ ? c.window.in_plane() : c.window.out_plane()},
        to_{forward_ ? c.outputs : c.window.channels, forward_ ? c.window.out_plane() : c.window.in_plane()},
        blocks_(from_.channels, divide_up(from_.channels, kBlock), 1),
        tiles_(to_.channels,
               divide_up(divide_up(to_.channels, ops().rows),
                         std::max<int64_t>(1, kTile / (taps_ * from_.channels * ops().rows))),
               ops().rows),
        chunks_(to_.plane, divide_up(to_.plane, kChunk), 1),
        pieces_(from_.plane, divide_up(from_.plane, kPiece), 1),
        runs_(blocks_, [&](int64_t channels) {
          BlockRuns::Runs runs(static_cast<size_t>(to_.plane));
          for_pairs(c.window, [&](int64_t tap, int64_t out, int64_t in) {
            runs[static_cast<size_t>(forward_ ? out : in)].push_back(
                {tap, (forward_ ? in : out) * channels * ops().columns, channels});
          });
          return runs;
        }) {
    ScratchLayout layout;
    const auto room = [&](int64_t floats) { return layout.take(floats * static_cast<int64_t>(sizeof(float))); };
    room(panels() * ops().columns * from_.channels * from_.plane);
    own_at_ = layout.bytes();
    room(taps_ * from_.channels * tiles_.tile);
    sums_at_ = layout.bytes() - own_at_;
    room(tiles_.tile * chunks_.tile * ops().columns);
    own_bytes_ = layout.bytes() - own_at_;
    scratch_->reserve(own_at_ + own_bytes_ * std::max(r.threads(), omp_get_max_threads()));
  }

  void run(std::span<std::byte* const> b) override {
    const float *from = as<float>(b[0]), *weights = as<float>(b[1]);
    float *to = as<float>(b[2]), *packed = as<float>(scratch_->data());
#pragma omp parallel
    {
#pragma omp for schedule(static)
      for (int64_t i = 0; i < panels() * parts(); ++i) pack(from, i / parts(), i % parts(), packed);
      std::byte* own = scratch_->data() + own_at_ + omp_get_thread_num() * own_bytes_;
      float *tile_weights = as<float>(own), *sums = as<float>(own + sums_at_);
      const int64_t places = panels() * chunks_.count();
      int64_t packed_tile = -1;
#pragma omp for schedule(static)
      for (int64_t task = 0; task < tiles_.count() * places; ++task) {
        const int64_t tile = task / places, panel = task % places / chunks_.count(), chunk = task % chunks_.count();
        if (tile != packed_tile) pack_weights(weights, tile, tile_weights);
        packed_tile = tile;
        add_up(tile, chunk, tile_weights, packed + panel * ops().columns * from_.channels * from_.plane, sums);
        write(tile, panel, chunk, sums, to);
      }
    }
  }

 private:
  // Channels of a block: with nine taps both panels stay in the first cache. Weights of a tile, in elements: they stay
  // in the second one. Places of a chunk: a line of the result.
  static constexpr int64_t kBlock = 32, kTile = 1 << 17, kChunk = 16;
  // Channels and places that are packed at a time, and samples at most.
  static constexpr int64_t kGroup = 8, kPiece = 16, kMostColumns = 32;

  struct Side {
    int64_t channels, plane;
  };

  int64_t parts() const { return divide_up(from_.channels, kGroup) * pieces_.count(); }
  int64_t panels() const { return divide_up(batch_, ops().columns); }
  int64_t samples(int64_t panel) const { return std::min(ops().columns, batch_ - panel * ops().columns); }

  // Some places of some channels. They go through memory of our own: samples may be a power of two apart, and would
  // then share a few sets of the cache.
  void pack(const float* from, int64_t panel, int64_t part, float* to) const {
    const int64_t sample = from_.channels * from_.plane, first = part / pieces_.count() * kGroup,
                  last = std::min(from_.channels, first + kGroup), piece = part % pieces_.count(),
                  place = pieces_.begin(piece), places = pieces_.extent(piece);
    from += panel * ops().columns * sample;
    to += panel * sample * ops().columns;
    float near[kGroup * kPiece * kMostColumns];
    for (int64_t n = 0; n < samples(panel); ++n) {
      for (int64_t c = first; c < last; ++c)
        std::copy_n(from + n * sample + c * from_.plane + place, places, near + ((c - first) + n * kGroup) * kPiece);
    }
    for (int64_t c = first; c < last; ++c) {
      const int64_t block = c / blocks_.tile, begin = blocks_.begin(block), extent = blocks_.extent(block);
      ops().pack_columns(to + (begin * from_.plane + place * extent + c - begin) * ops().columns,
                         extent * ops().columns, near + (c - first) * kPiece, kGroup * kPiece, 1, samples(panel),
                         places);
    }
  }

  int64_t a_row(int64_t extent) const { return forward_ ? extent * taps_ : taps_; }
  int64_t a_column() const { return forward_ ? taps_ : ops().rows * taps_; }

  void pack_weights(const float* weights, int64_t tile, float* to) const {
    const int64_t first = tiles_.begin(tile), rows = tiles_.extent(tile);
    for (int64_t block = 0; block < blocks_.count(); ++block) {
      const int64_t begin = blocks_.begin(block), extent = blocks_.extent(block), size = extent * ops().rows * taps_;
      float* at = to + begin * taps_ * tiles_.tile;
      if (rows % ops().rows != 0) std::fill_n(at + rows / ops().rows * size, size, 0.0f);
      if (forward_) {
        for (int64_t row = 0; row < rows; ++row)
          std::copy_n(weights + ((first + row) * from_.channels + begin) * taps_, extent * taps_,
                      at + row * extent * taps_);
        continue;
      }
      for (int64_t i = 0; i < extent; ++i) {
        const float* from = weights + ((begin + i) * to_.channels + first) * taps_;
        for (int64_t row = 0; row < rows; row += ops().rows)
          std::copy_n(from + row * taps_, std::min(ops().rows, rows - row) * taps_,
                      at + row / ops().rows * size + i * a_column());
      }
    }
  }

  // sums[channel][place][sample]
  void add_up(int64_t tile, int64_t chunk, const float* weights, const float* from, float* sums) const {
    const int64_t rows = divide_up(tiles_.extent(tile), ops().rows), places = chunks_.extent(chunk);
    for (int64_t block = 0; block < blocks_.count(); ++block) {
      const int64_t begin = blocks_.begin(block), extent = blocks_.extent(block);
      const BlockRuns::Runs& all = runs_.of(extent);
      for (int64_t place = 0; place < places; ++place) {
        const std::vector<PanelRun>& runs = all[static_cast<size_t>(chunks_.begin(chunk) + place)];
        for (int64_t row = 0; row < rows; ++row)
          ops().rows_by_panel(sums + (row * ops().rows * places + place) * ops().columns, places * ops().columns,
                              weights + (begin * tiles_.tile + row * extent * ops().rows) * taps_, a_row(extent),
                              a_column(), from + begin * from_.plane * ops().columns, runs.data(),
                              static_cast<int64_t>(runs.size()), block > 0);
      }
    }
  }

  void write(int64_t tile, int64_t panel, int64_t chunk, const float* sums, float* to) const {
    const int64_t places = chunks_.extent(chunk), sample = to_.channels * to_.plane;
    to += panel * ops().columns * sample + tiles_.begin(tile) * to_.plane + chunks_.begin(chunk);
    // A whole plane is followed by the next channel's.
    const bool whole = chunks_.count() == 1;
    const int64_t stretches = whole ? 1 : tiles_.extent(tile), stretch = whole ? places * tiles_.extent(tile) : places;
    for (int64_t i = 0; i < stretches; ++i)
      transpose(to + i * to_.plane, sample, sums + i * stretch * ops().columns, ops().columns, stretch, samples(panel));
  }

  std::shared_ptr<KernelScratch> scratch_;
  bool forward_;
  int64_t batch_, taps_;
  Side from_, to_;
  Tiling blocks_, tiles_, chunks_, pieces_;
  BlockRuns runs_;  // of each place of the result, in a block of channels
  int64_t own_at_ = 0, sums_at_ = 0, own_bytes_ = 0;
};

// dw: a panel of A is g at some output channels, one of B x at some input channels, for some samples and all places.
//   A [samples, in blocks][panel][place][sample][rows]
//   B [samples, in blocks][panel][place][sample][columns]
class WeightsByPlaces final : public LibraryKernel {
 public:
  WeightsByPlaces(const KernelRequest& r, const Convolution& c)
      : scratch_(r.scratch()),
        taps_(c.window.kernel_size()),
        in_{c.window.channels, c.window.in_plane(), ops().columns},
        out_{c.outputs, c.window.out_plane(), ops().rows},
        blocks_(c.window.batch, divide_up(c.window.batch, samples(c.window)), 1),
        chunks_(out_.plane, divide_up(out_.plane * blocks_.tile, kInner), 1),
        tiles_(out_.channels, divide_up(out_.channels, kTile), ops().rows),
        runs_(blocks_, [&](int64_t samples) {
          BlockRuns::Runs runs(static_cast<size_t>(chunks_.count() * taps_));
          for_pairs(c.window, [&](int64_t tap, int64_t out, int64_t in) {
            join(runs[static_cast<size_t>(out / chunks_.tile * taps_ + tap)],
                 {out * samples * ops().rows, in * samples * ops().columns, samples});
          });
          return runs;
        }) {
    ScratchLayout layout;
    const auto room = [&](int64_t floats) { return layout.take(floats * static_cast<int64_t>(sizeof(float))); };
    room(out_.size() * c.window.batch);
    in_at_ = layout.bytes();
    room(in_.size() * c.window.batch);
    own_at_ = layout.bytes();
    room(tiles_.tile * taps_ * ops().columns);
    own_bytes_ = layout.bytes() - own_at_;
    scratch_->reserve(own_at_ + own_bytes_ * std::max(r.threads(), omp_get_max_threads()));
  }

  void run(std::span<std::byte* const> b) override {
    float* dw = as<float>(b[2]);
    float *out = as<float>(scratch_->data()), *in = as<float>(scratch_->data() + in_at_);
#pragma omp parallel
    {
#pragma omp for schedule(static)
      for (int64_t n = 0; n < blocks_.size; ++n) {
        pack(out_, ops().pack_rows, as<float>(b[0]), n, out);
        pack(in_, ops().pack_columns, as<float>(b[1]), n, in);
      }
      float* sums = as<float>(scratch_->data() + own_at_ + omp_get_thread_num() * own_bytes_);
#pragma omp for schedule(static)
      for (int64_t task = 0; task < in_.panels() * tiles_.count(); ++task) {
        const int64_t panel = task / tiles_.count(), tile = task % tiles_.count();
        add_up(panel, tile, out, in, sums);
        const int64_t first = panel * ops().columns, columns = std::min(ops().columns, in_.channels - first);
        for (int64_t o = 0; o < tiles_.extent(tile); ++o)
          transpose(dw + ((tiles_.begin(tile) + o) * in_.channels + first) * taps_, taps_,
                    sums + o * taps_ * ops().columns, ops().columns, taps_, columns);
      }
    }
  }

 private:
  // Samples and places of a block, or chunk: of these both panels stay in the first cache. Output channels of a tile.
  static constexpr int64_t kInner = 256, kStrided = 8, kTile = 48;

  // Of a block. With strides only the samples of a place lie one after the other.
  static int64_t samples(const Window& w) {
    return std::max<int64_t>(product(w.stride) > 1 ? kStrided : 1, kInner / w.out_plane());
  }

  struct Side {
    int64_t channels, plane, line;  // line: channels of a panel
    int64_t panels() const { return divide_up(channels, line); }
    int64_t size() const { return panels() * line * plane; }  // of a sample
  };

  template <typename Pack>
  void pack(const Side& side, const Pack& pack, const float* from, int64_t n, float* to) const {
    const int64_t block = n / blocks_.tile, samples = blocks_.extent(block);
    to += blocks_.begin(block) * side.size() + (n - blocks_.begin(block)) * side.line;
    for (int64_t first = 0; first < side.channels; first += side.line, to += side.plane * samples * side.line)
      pack(to, samples * side.line, from + (n * side.channels + first) * side.plane, side.plane, 1,
           std::min(side.line, side.channels - first), side.plane);
  }

  // sums[output channel][tap][input channel]
  void add_up(int64_t panel, int64_t tile, const float* out, const float* in, float* sums) const {
    const int64_t rows = divide_up(tiles_.extent(tile), ops().rows), first = tiles_.begin(tile) / ops().rows;
    for (int64_t block = 0; block < blocks_.count(); ++block) {
      const int64_t begin = blocks_.begin(block), samples = blocks_.extent(block);
      const BlockRuns::Runs& all = runs_.of(samples);
      const float* b = in + begin * in_.size() + panel * in_.plane * samples * in_.line;
      for (int64_t chunk = 0; chunk < chunks_.count(); ++chunk) {
        for (int64_t row = 0; row < rows; ++row) {
          const float* a = out + begin * out_.size() + (first + row) * out_.plane * samples * out_.line;
          for (int64_t tap = 0; tap < taps_; ++tap) {
            const std::vector<PanelRun>& runs = all[static_cast<size_t>(chunk * taps_ + tap)];
            ops().panels(sums + (row * ops().rows * taps_ + tap) * ops().columns, taps_ * ops().columns, a, b,
                         runs.data(), static_cast<int64_t>(runs.size()), block + chunk > 0);
          }
        }
      }
    }
  }

  std::shared_ptr<KernelScratch> scratch_;
  int64_t taps_;
  Side in_, out_;
  Tiling blocks_, chunks_, tiles_;
  BlockRuns runs_;  // of each chunk and tap, in a block of samples
  int64_t in_at_ = 0, own_at_ = 0, own_bytes_ = 0;
};

}  // namespace

// By times (tools/bench/convolutions) on two processors with AVX-512 and one without. oneDNN leaves out the taps in the
// padding along rows; it is slow in gradients of weights, with AVX-512 on small planes, in strided gradients of data,
// and without AVX-512 where a row is no multiple of what its registers hold. Gradients of few weights are too few tiles
// for all threads.
bool is_faster_by_taps(const Convolution& c, Direction direction) {
  constexpr int64_t kSmallPlane = 256;
  const Window& w = c.window;
  const int64_t fewest = std::min(w.channels, c.outputs);
  if (c.groups != 1 || w.kernel_size() == 1 || fewest < 16) return false;
  const bool strided = product(w.stride) > 1, data = direction == Direction::kGradData;
  if (direction == Direction::kGradWeight) {
    if (has_avx512()) return fewest >= 64 && w.out_plane() <= (strided || fewest < 128 ? kSmallPlane / 4 : kSmallPlane);
    return fewest >= 32 && (!strided || (w.batch >= 4 && w.out_plane() <= kSmallPlane));
  }
  const int64_t samples = divide_up(w.batch, ops().columns) * ops().columns;
  const double work = share_inside(w) * static_cast<double>(samples) / static_cast<double>(w.batch);
  if (has_avx512()) return w.out_plane() <= 16 && work < (data && strided ? 0.7 : 0.5);
  return (data ? w.in_plane() : w.out_plane()) <= kSmallPlane && work < (data && strided ? 1.0 : 0.9);
}

Kernel make_conv_by_taps(const KernelRequest& r, const Convolution& c, Direction direction) {
  if (direction == Direction::kGradWeight) return std::make_unique<WeightsByPlaces>(r, c);
  return std::make_unique<ByPlaces>(r, c, direction);
}

}  // namespace partita::runtime
