#include <algorithm>
#include <cmath>

#include "runtime/data/records/image.h"

namespace partita::runtime {
namespace {

constexpr int kBits = 22;  // of the weights' fraction: 8 of the pixel, 2 to spare in 32

double weight_at(double x, ImageFilter filter) {
  x = std::abs(x);
  if (filter == ImageFilter::kBilinear) return x < 1 ? 1 - x : 0;
  constexpr double a = -0.5;
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * a : 0;
}

// What one output pixel along an axis is made of.
struct Taps {
  int first = 0;  // input pixel of the first weight
  std::vector<int32_t> weights;
};

std::vector<Taps> taps_of(int first, int in, int out, ImageFilter filter) {
  const double scale = static_cast<double>(in) / out, stretch = std::max(scale, 1.0), shrink = 1 / stretch;
  const double support = (filter == ImageFilter::kBilinear ? 1.0 : 2.0) * stretch;
  std::vector<Taps> taps(static_cast<size_t>(out));
  for (int x = 0; x < out; ++x) {
    const double center = (x + 0.5) * scale;
    const int begin = std::max(static_cast<int>(center - support + 0.5), 0);
    const int end = std::min(static_cast<int>(center + support + 0.5), in);
    std::vector<double> weights;
    double sum = 0;
    for (int k = begin; k < end; ++k) {
      weights.push_back(weight_at((k - center + 0.5) * shrink, filter));
      sum += weights.back();
    }
    Taps& t = taps[static_cast<size_t>(x)];
    t.first = first + begin;
    for (double w : weights) {
      const double scaled = (sum != 0 ? w / sum : w) * (1 << kBits);
      t.weights.push_back(static_cast<int32_t>(scaled + (scaled < 0 ? -0.5 : 0.5)));
    }
  }
  return taps;
}

uint8_t rounded(int32_t sum) { return static_cast<uint8_t>(std::clamp(sum >> kBits, 0, 255)); }

constexpr int32_t kHalf = 1 << (kBits - 1);

// Rows [top, top + height) of the image, made narrower or wider.
template <int kChannels>
Image resize_rows(const Image& image, int top, int height, const std::vector<Taps>& taps) {
  Image out{height, static_cast<int>(taps.size()), kChannels, {}};
  out.pixels.resize(static_cast<size_t>(height) * taps.size() * kChannels);
  uint8_t* to = out.pixels.data();
  for (int y = top; y < top + height; ++y) {
    const uint8_t* row = image.pixels.data() + static_cast<ptrdiff_t>(y) * image.width * kChannels;
    for (const Taps& t : taps) {
      int32_t sum[kChannels];
      std::fill_n(sum, kChannels, kHalf);
      const uint8_t* from = row + t.first * kChannels;
      for (int32_t w : t.weights) {
        for (int c = 0; c < kChannels; ++c) sum[c] += *from++ * w;
      }
      for (int c = 0; c < kChannels; ++c) *to++ = rounded(sum[c]);
    }
  }
  return out;
}

Image resize_columns(const Image& image, const std::vector<Taps>& taps) {
  Image out{static_cast<int>(taps.size()), image.width, image.channels, {}};
  const size_t row = static_cast<size_t>(image.width) * static_cast<size_t>(image.channels);
  out.pixels.resize(taps.size() * row);
  std::vector<int32_t> sums(row);
  uint8_t* to = out.pixels.data();
  for (const Taps& t : taps) {
    std::fill(sums.begin(), sums.end(), kHalf);
    const uint8_t* from = image.pixels.data() + static_cast<size_t>(t.first) * row;
    for (int32_t w : t.weights) {
      for (size_t k = 0; k < row; ++k) sums[k] += from[k] * w;
      from += row;
    }
    for (size_t k = 0; k < row; ++k) *to++ = rounded(sums[k]);
  }
  return out;
}

}  // namespace

Image resize_image(const Image& image, const ImageBox& box, int height, int width, ImageFilter filter) {
  const std::vector<Taps> across = taps_of(box.left, box.width, width, filter);
  std::vector<Taps> down = taps_of(box.top, box.height, height, filter);
  // Only the rows that the second pass reads. A pass that would change nothing copies.
  const int first = down.front().first, end = down.back().first + static_cast<int>(down.back().weights.size());
  for (Taps& t : down) t.first -= first;
  const Image narrow = image.channels == 3 ? resize_rows<3>(image, first, end - first, across)
                                           : resize_rows<1>(image, first, end - first, across);
  return resize_columns(narrow, down);
}

}  // namespace partita::runtime
