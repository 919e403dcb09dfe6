#include "runtime/data/records/image_transform.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/cat.h"
#include "base/mix64.h"
#include "base/status.h"

namespace partita::runtime {
namespace {

// What a draw is for: its number, or that of the first.
enum Draw : uint64_t { kFlip = 0, kTop = 1, kLeft = 2, kTries = 8 };
constexpr int kMostTries = 10;

int rounded(double x) { return static_cast<int>(std::nearbyint(x)); }  // halves to even, as Python's round

// A whole number in [0, limit].
int whole(const SampleDraws& draws, uint64_t number, int limit) {
  return std::min(limit, static_cast<int>(draws.uniform(number) * (limit + 1)));
}

// A box of some area and shape within the picture; where ten tries do not fit, the largest in the middle.
ImageBox random_box(const ImageSettings& s, int height, int width, const SampleDraws& draws) {
  const double area = static_cast<double>(height) * width;
  for (uint64_t k = 0; k < kMostTries; ++k) {
    const auto draw = [&](uint64_t number) { return draws.uniform(kTries + 4 * k + number); };
    const double target = area * (s.scale[0] + (s.scale[1] - s.scale[0]) * draw(0));
    const double low = std::log(s.ratio[0]), ratio = std::exp(low + (std::log(s.ratio[1]) - low) * draw(1));
    const int w = rounded(std::sqrt(target * ratio)), h = rounded(std::sqrt(target / ratio));
    if (w <= 0 || h <= 0 || w > width || h > height) continue;
    return {whole(draws, kTries + 4 * k + 2, height - h), whole(draws, kTries + 4 * k + 3, width - w), h, w};
  }
  const double ratio = static_cast<double>(width) / height;
  const int w = ratio > s.ratio[1] ? std::max(1, rounded(height * s.ratio[1])) : width;
  const int h = ratio < s.ratio[0] ? std::max(1, rounded(width / s.ratio[0])) : height;
  return {(height - h) / 2, (width - w) / 2, h, w};
}

// Sizes after `resize`.
std::pair<int64_t, int64_t> resized(const ImageSettings& s, int height, int width, int out_height, int out_width) {
  if (s.resize.size() == 2) return {s.resize[0], s.resize[1]};
  if (s.resize.empty() && s.crop == ImageCrop::kNone) return {out_height, out_width};
  if (s.resize.empty() && s.crop != ImageCrop::kCenter) return {height, width};
  const int64_t shorter = std::min(height, width), longer = std::max(height, width);
  int64_t to = s.resize.empty() ? std::max(out_height, out_width) : s.resize[0];
  // The smallest that covers what is asked for.
  if (s.resize.empty() && out_height != out_width) {
    const double scale = std::max(static_cast<double>(out_height) / height, static_cast<double>(out_width) / width);
    to = static_cast<int64_t>(std::ceil(scale * static_cast<double>(shorter) - 1e-9));
  }
  const int64_t other = to * longer / shorter;
  const int64_t h = height <= width ? to : other, w = height <= width ? other : to;
  if (!s.resize.empty()) return {h, w};
  return {std::max<int64_t>(h, out_height), std::max<int64_t>(w, out_width)};
}

// `box` of the image and the zeros around it.
Image cut(const Image& image, int padding, const ImageBox& box) {
  Image out{box.height, box.width, image.channels, {}};
  const auto c = static_cast<size_t>(image.channels);
  out.pixels.assign(static_cast<size_t>(box.height) * static_cast<size_t>(box.width) * c, 0);
  const int left = box.left - padding, from = std::max(left, 0), to = std::min(left + box.width, image.width);
  for (int y = 0; y < box.height && from < to; ++y) {
    const int row = box.top - padding + y;
    if (row < 0 || row >= image.height) continue;
    const auto at = [&](const Image& i, int line, int column) {
      return (static_cast<size_t>(line) * static_cast<size_t>(i.width) + static_cast<size_t>(column)) * c;
    };
    std::copy_n(image.pixels.data() + at(image, row, from), static_cast<size_t>(to - from) * c,
                out.pixels.data() + at(out, y, from - left));
  }
  return out;
}

void flip_rows(Image& image) {
  const size_t c = static_cast<size_t>(image.channels), row = static_cast<size_t>(image.width) * c;
  for (size_t begin = 0; begin < image.pixels.size(); begin += row) {
    for (size_t a = begin, b = begin + row - c; a < b; a += c, b -= c)
      std::swap_ranges(image.pixels.data() + a, image.pixels.data() + a + c, image.pixels.data() + b);
  }
}

ImageBox whole_of(const Image& image) { return {0, 0, image.height, image.width}; }

}  // namespace

double SampleDraws::uniform(uint64_t number) const {
  const uint64_t word = mix64(mix64(mix64(seed, epoch), sample), number);
  return static_cast<double>(word >> 11) * 0x1p-53;
}

absl::StatusOr<ImagePlan> plan_image(const ImageSettings& s, int height, int width, int out_height, int out_width,
                                     const SampleDraws& draws) {
  ImagePlan plan{.height = height, .width = width, .flip = draws.uniform(kFlip) < s.flip};
  if (s.crop == ImageCrop::kRandomResized) {
    plan.box = random_box(s, height, width, draws);
    return plan;
  }
  const auto [rows, columns] = resized(s, height, width, out_height, out_width);
  if (rows > kMostPixels / columns)
    return absl::InvalidArgumentError(
        cat("the picture has ", height, " x ", width, " pixels, too narrow to be resized to ", rows, " x ", columns));
  plan.height = static_cast<int>(rows);
  plan.width = static_cast<int>(columns);
  if (s.crop == ImageCrop::kNone) {
    plan.box = {0, 0, plan.height, plan.width};
    return plan;
  }
  plan.padding = s.crop == ImageCrop::kRandom ? static_cast<int>(s.padding) : 0;
  const int more_rows = plan.height + 2 * plan.padding - out_height;
  const int more_columns = plan.width + 2 * plan.padding - out_width;
  if (more_rows < 0 || more_columns < 0) {
    return absl::InvalidArgumentError(cat("the picture has ", height, " x ", width, " pixels, ", plan.height, " x ",
                                          plan.width, " when resized, and the model takes ", out_height, " x ",
                                          out_width, "; say images: {resize: ", std::max(out_height, out_width),
                                          "} or more"));
  }
  const bool random = s.crop == ImageCrop::kRandom;
  plan.box = {random ? whole(draws, kTop, more_rows) : rounded(more_rows / 2.0),
              random ? whole(draws, kLeft, more_columns) : rounded(more_columns / 2.0), out_height, out_width};
  return plan;
}

absl::StatusOr<Image> transform_image(std::span<const std::byte> file, const ImageSettings& s, int channels,
                                      int out_height, int out_width, const SampleDraws& draws) {
  PARTITA_ASSIGN_OR_RETURN(Image image, decode_image(file, channels));
  PARTITA_ASSIGN_OR_RETURN(const ImagePlan plan,
                           plan_image(s, image.height, image.width, out_height, out_width, draws));
  if (plan.height != image.height || plan.width != image.width)
    image = resize_image(image, whole_of(image), plan.height, plan.width, s.interpolation);
  if (plan.box.height != out_height || plan.box.width != out_width)
    image = resize_image(image, plan.box, out_height, out_width, s.interpolation);
  else if (plan.padding != 0 || plan.box != whole_of(image))
    image = cut(image, plan.padding, plan.box);
  if (plan.flip) flip_rows(image);
  return image;
}

void write_pixels(const Image& image, const ImageSettings& s, bool channels_last, std::span<float> out) {
  const auto c = static_cast<size_t>(image.channels), pixels = image.pixels.size() / c;
  for (size_t k = 0; k < c; ++k) {
    const float mean = s.mean.empty() ? 0.0f : static_cast<float>(s.mean[k]);
    const float deviation = s.std.empty() ? 1.0f : static_cast<float>(s.std[k]);
    float of_byte[256];
    for (int b = 0; b < 256; ++b) of_byte[b] = (static_cast<float>(b) / 255.0f - mean) / deviation;
    float* to = out.data() + (channels_last ? k : k * pixels);
    const size_t step = channels_last ? c : 1;
    for (size_t p = 0; p < pixels; ++p) to[p * step] = of_byte[image.pixels[p * c + k]];
  }
}

}  // namespace partita::runtime
