// DFT and STFT as products with matrices of cosines and sines.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

#include "base/cat.h"
#include "frontend/import/convert_table.h"

namespace partita {
namespace {

// A transform of `from` values along one dimension to `to` values; of a complex number (re, im), of a real one (re).
struct Transform {
  int64_t length, from, to;
  bool inverse, real_in, real_out;

  int64_t in_parts() const { return real_in ? 1 : 2; }
  int64_t out_parts() const { return real_out ? 1 : 2; }

  // Column by column of one complex factor e^(-+ 2 pi i k n / length): [from (re im), to (re im)]. What lies beyond
  // `length` is left out. From half a spectrum to real values, each bin stands for its conjugate too.
  std::vector<double> matrix() const {
    const int64_t rows = from * in_parts(), columns = to * out_parts();
    std::vector<double> m(static_cast<size_t>(rows * columns), 0.0);
    for (int64_t n = 0; n < std::min(from, real_out ? length / 2 + 1 : length); ++n) {
      const double weight =
          (inverse ? 1.0 / static_cast<double>(length) : 1.0) * (real_out && n > 0 && 2 * n != length ? 2.0 : 1.0);
      for (int64_t k = 0; k < to; ++k) {
        const double angle = 2 * std::numbers::pi * static_cast<double>(n * k % length) / static_cast<double>(length);
        const double re = weight * std::cos(angle), im = weight * (inverse ? std::sin(angle) : -std::sin(angle));
        auto at = [&](int64_t in, int64_t out) -> double& {
          return m[static_cast<size_t>((n * in_parts() + in) * columns + k * out_parts() + out)];
        };
        at(0, 0) = re;
        if (!real_out) at(0, 1) = im;
        if (!real_in) at(1, 0) = -im;
        if (!real_in && !real_out) at(1, 1) = re;
      }
    }
    return m;
  }
};

// x [..., from, 1 or 2] -> [..., to, 1 or 2]
ValueId transformed(Conversion& c, ValueId x, const Transform& t) {
  Emitter& e = c.e;
  const int64_t rows = t.from * t.in_parts(), columns = t.to * t.out_parts();
  if (rows * columns > Emitter::kMaxFolded)
    c.unsupported(cat("a transform of ", t.length, " values; it is made as a product with a matrix"));
  Shape shape = e.shape(x);
  const int64_t others = elements(shape) / rows;
  ValueId y = e.matmul(e.reshape(x, {others, rows}), e.floats(e.dtype(x), {rows, columns}, t.matrix()));
  shape[shape.size() - 2] = t.to;
  shape.back() = t.out_parts();
  return e.reshape(y, shape);
}

std::vector<int64_t> swapped(int rank, int a, int b) {
  std::vector<int64_t> p(static_cast<size_t>(rank));
  for (int d = 0; d < rank; ++d) p[d] = d;
  std::swap(p[a], p[b]);
  return p;
}

void dft(Conversion& c) {
  Emitter& e = c.e;
  const Shape shape = c.shape(0);
  const int rank = c.rank(0);
  c.require(rank >= 2 && (shape.back() == 1 || shape.back() == 2) && is_float(c.dtype(0)),
            "expected floats [..., 1] or [..., 2]");
  const bool axis_input = c.version >= 20;
  const int axis = c.axis(axis_input ? (c.has(2) ? c.known_int(2, "the axis") : -2) : c.i("axis", 1), rank);
  c.require(axis < rank - 1, "the last dimension holds real and imaginary parts");
  const bool inverse = c.i("inverse", 0) != 0, onesided = c.i("onesided", 0) != 0, real_out = inverse && onesided;
  const bool real_in = shape.back() == 1;
  c.require(!onesided || real_in == !inverse,
            "onesided: a forward transform takes real values, an inverse one complex");
  const int64_t length = c.has(1) ? c.known_int(1, "the length") : real_out ? 2 * (shape[axis] - 1) : shape[axis];
  c.require(length > 0, "expected a positive length");
  const Transform t{length, shape[axis], onesided && !inverse ? length / 2 + 1 : length, inverse, real_in, real_out};
  const std::vector<int64_t> order = swapped(rank, axis, rank - 2);
  c.out(e.transpose(transformed(c, e.transpose(c.in(0), order), t), order));
}

// signal [batch, length, 1 or 2] -> [batch, frames, bins, 2]
void stft(Conversion& c) {
  Emitter& e = c.e;
  const Shape shape = c.shape(0);
  c.require(shape.size() == 3 && (shape[2] == 1 || shape[2] == 2) && is_float(c.dtype(0)),
            "expected floats [batch, length, 1] or [batch, length, 2]");
  c.require(c.has(2) || c.has(3), "expected a window or a frame's length");
  const int64_t step = c.known_int(1, "the step of frames");
  const int64_t size = c.has(3) ? c.known_int(3, "the length of frames") : c.shape(2)[0];
  c.require(step > 0 && size > 0 && size <= shape[1], "expected frames within the signal");
  const bool real = shape[2] == 1, onesided = c.i("onesided", 1) != 0;
  c.require(real || !onesided, "onesided: expected real values");
  const int64_t frames = (shape[1] - size) / step + 1;
  std::vector<int64_t> places;
  for (int64_t f = 0; f < frames; ++f)
    for (int64_t k = 0; k < size; ++k) places.push_back(f * step + k);
  ValueId x = e.gather(c.in(0), e.ints(DType::kI64, {frames, size}, places), 1);
  if (c.has(2)) {
    c.require(c.shape(2) == Shape{size}, "expected a window as long as a frame");
    x = e.mul(x, e.broadcast_to(e.reshape(c.in(2), {1, 1, size, 1}), e.shape(x)));
  }
  c.out(transformed(c, x, {size, size, onesided ? size / 2 + 1 : size, false, real, false}));
}

constexpr ConvertEntry kTable[] = {
    {"DFT", 17, dft},
    {"STFT", 17, stft},
};

}  // namespace

std::span<const ConvertEntry> fourier_table() { return kTable; }

}  // namespace partita
