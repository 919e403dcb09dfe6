// Resize and Upsample at constant scales: one dimension after the other, each output position a weighted sum of a few
// input positions.
#include <algorithm>
#include <cmath>
#include <optional>

#include "base/cat.h"
#include "base/quote.h"
#include "frontend/import/convert_table.h"

namespace partita {
namespace {

struct ResizeSettings {
  std::string mode, transform, nearest;
  double cubic = -0.75, extrapolation = 0;
  bool exclude_outside = false, antialias = false;
};

struct ResizeAxis {
  double scale = 1;
  int64_t output = 0;
  double roi_start = 0, roi_end = 1;
};

// Where output position y lies among the input's `n` positions.
double source(const Conversion& c, const ResizeSettings& s, const ResizeAxis& a, int64_t n, double y) {
  double width = a.scale * static_cast<double>(n), last = static_cast<double>(n - 1);
  if (s.transform == "align_corners") return width == 1 ? 0 : y * last / (width - 1);
  if (s.transform == "asymmetric") return y / a.scale;
  if (s.transform == "pytorch_half_pixel") return width == 1 ? -0.5 : (y + 0.5) / a.scale - 0.5;
  if (s.transform == "half_pixel") return (y + 0.5) / a.scale - 0.5;
  if (s.transform == "half_pixel_symmetric") {
    double offset = static_cast<double>(n) / 2 * (1 - static_cast<double>(a.output) / width);
    return offset + (y + 0.5) / a.scale - 0.5;
  }
  c.require(s.transform == "tf_crop_and_resize",
            cat("coordinate_transformation_mode ", quote(s.transform), " is not known"));
  double x = width == 1 ? (a.roi_end - a.roi_start) * last / 2 : y * (a.roi_end - a.roi_start) * last / (width - 1);
  return x + a.roi_start * last;
}

double cubic_weight(double x, double a) {
  x = std::abs(x);
  if (x <= 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  return x < 2 ? ((a * x - 5 * a) * x + 8 * a) * x - 4 * a : 0;
}

// Weights of the neighbours, leftmost first; `ratio` in (0, 1] is the distance from the one left of the position.
std::vector<double> weights(const Conversion& c, const ResizeSettings& s, double ratio, double scale) {
  if (s.mode == "nearest") {
    bool right = ratio == 1 || s.nearest == "ceil" || (s.nearest == "round_prefer_floor" && ratio > 0.5) ||
                 (s.nearest == "round_prefer_ceil" && ratio >= 0.5);
    return {right ? 0.0 : 1.0, right ? 1.0 : 0.0};
  }
  bool linear = s.mode == "linear";
  c.require(linear || s.mode == "cubic", cat("mode ", quote(s.mode), " is not known"));
  double width = s.antialias ? std::min(scale, 1.0) : 1, radius = linear ? 1 : 2;
  if (!s.antialias && linear) return {1 - ratio, ratio};
  int first = static_cast<int>(std::floor(-radius / width)) + 1, count = 2 - 2 * first;
  c.require(count < 4096, "the scale is too small");
  std::vector<double> w;
  double total = 0;
  for (int k = first; k < first + count; ++k) {
    double x = width * (k - ratio);
    w.push_back(linear ? std::clamp(1 - std::abs(x), 0.0, 1.0) : cubic_weight(x, s.cubic));
    total += w.back();
  }
  if (s.antialias) {
    for (double& x : w) x /= total;
  }
  return w;
}

ValueId resize_axis(Conversion& c, const ResizeSettings& s, ValueId x, int axis, const ResizeAxis& a) {
  Emitter& e = c.e;
  int64_t n = e.shape(x)[axis];
  c.require(n > 0 && a.output >= 0 && a.output <= 1 << 22, "a resized dimension is empty or too large");
  std::vector<std::vector<int64_t>> index;
  std::vector<std::vector<double>> weight;
  std::vector<int64_t> outside;
  for (int64_t y = 0; y < a.output; ++y) {
    double at = source(c, s, a, n, static_cast<double>(y)), floor = std::floor(at);
    std::vector<double> w = weights(c, s, at == floor ? 1 : at - floor, a.scale);
    int64_t taps = static_cast<int64_t>(w.size()),
            first = static_cast<int64_t>(floor) - taps / 2 + (at == floor ? 0 : 1);
    outside.push_back(s.transform == "tf_crop_and_resize" && (at < 0 || at > static_cast<double>(n - 1)));
    double total = 0;
    index.resize(w.size()), weight.resize(w.size());
    for (int64_t k = 0; k < taps; ++k) {
      if (s.exclude_outside && (first + k < 0 || first + k >= n)) w[k] = 0;
      total += w[k];
    }
    for (int64_t k = 0; k < taps; ++k) {
      index[k].push_back(std::clamp<int64_t>(first + k, 0, n - 1));
      weight[k].push_back(s.exclude_outside && total != 0 ? w[k] / total : w[k]);
    }
  }
  Shape line(e.shape(x).size(), 1);
  line[axis] = a.output;
  ValueId y = kNoValue;
  if (s.mode == "nearest") {
    for (size_t p = 0; p < index[0].size(); ++p) index[0][p] = index[weight[0][p] == 0 ? 1 : 0][p];
    y = e.gather(x, e.ints(index[0]), axis);
  } else {
    for (size_t k = 0; k < index.size(); ++k) {
      if (std::all_of(weight[k].begin(), weight[k].end(), [](double w) { return w == 0; })) continue;
      ValueId part = e.mul(e.gather(x, e.ints(index[k]), axis), e.floats(e.dtype(x), line, weight[k]));
      y = y == kNoValue ? part : e.add(y, part);
    }
  }
  if (std::any_of(outside.begin(), outside.end(), [](int64_t o) { return o != 0; })) {
    y = e.select(e.ints(DType::kBool, line, outside), e.like(y, s.extrapolation), y);
  }
  return y;
}

void apply(Conversion& c, const ResizeSettings& s, std::vector<ResizeAxis> axes, bool roi) {
  Emitter& e = c.e;
  DType t = c.dtype(0);
  bool widen = s.mode != "nearest" && !is_float(t);
  ValueId x = widen ? e.cast(c.in(0), DType::kF32) : c.in(0);
  for (size_t d = 0; d < axes.size(); ++d) {
    const ResizeAxis& a = axes[d];
    bool same =
        std::abs(a.scale - 1) < 1e-9 && a.output == e.shape(x)[d] && (!roi || (a.roi_start == 0 && a.roi_end == 1));
    if (!same) x = resize_axis(c, s, x, static_cast<int>(d), a);
  }
  if (widen) x = e.cast(e.emit("round", {x}), t);
  c.out(x);
}

void set_scales(const Conversion& c, std::vector<ResizeAxis>& axes, const std::vector<int64_t>& which,
                const std::vector<double>& scales) {
  c.require(scales.size() == which.size(), cat("expected ", which.size(), " scales, found ", scales.size()));
  for (size_t k = 0; k < which.size(); ++k) {
    ResizeAxis& a = axes[which[k]];
    c.require(scales[k] > 0 && scales[k] < 1e6, "a scale is out of range");
    a.scale = scales[k];
    a.output = static_cast<int64_t>(std::floor(scales[k] * static_cast<double>(c.shape(0)[which[k]])));
  }
}

void set_sizes(const Conversion& c, std::vector<ResizeAxis>& axes, const std::vector<int64_t>& which,
               const std::vector<int64_t>& sizes) {
  c.require(sizes.size() == which.size(), cat("expected ", which.size(), " sizes, found ", sizes.size()));
  std::string policy = c.s("keep_aspect_ratio_policy", "stretch");
  std::optional<double> common;
  for (size_t k = 0; k < which.size(); ++k) {
    int64_t n = c.shape(0)[which[k]];
    c.require(sizes[k] > 0 && n > 0, "a size is not positive");
    double scale = static_cast<double>(sizes[k]) / static_cast<double>(n);
    axes[which[k]].scale = scale;
    axes[which[k]].output = sizes[k];
    if (!common || (policy == "not_larger" ? scale < *common : scale > *common)) common = scale;
  }
  if (policy == "stretch" || !common) return;
  c.require(policy == "not_larger" || policy == "not_smaller",
            cat("keep_aspect_ratio_policy ", quote(policy), " is not known"));
  for (int64_t d : which) {
    axes[d].scale = *common;
    axes[d].output = static_cast<int64_t>(*common * static_cast<double>(c.shape(0)[d]) + 0.5);
  }
}

std::vector<ResizeAxis> unchanged(const Conversion& c) {
  std::vector<ResizeAxis> axes;
  for (int64_t n : c.shape(0)) axes.push_back({1, n});
  return axes;
}

std::vector<int64_t> every_axis(const Conversion& c) {
  std::vector<int64_t> out;
  for (int d = 0; d < c.rank(0); ++d) out.push_back(d);
  return out;
}

// Upsample and Resize of opset 10: positions are y / scale, the nearest is the one to the left.
void upsample(Conversion& c) {
  ResizeSettings s{c.s("mode", "nearest"), "asymmetric", "floor"};
  std::vector<ResizeAxis> axes = unchanged(c);
  set_scales(c, axes, every_axis(c), c.version < 9 ? c.floats("scales") : c.known_floats(1, "scales"));
  apply(c, s, axes, false);
}

void resize(Conversion& c) {
  ResizeSettings s{c.s("mode", "nearest"), c.s("coordinate_transformation_mode", "half_pixel"),
                   c.s("nearest_mode", "round_prefer_floor")};
  s.cubic = c.f("cubic_coeff_a", -0.75);
  s.extrapolation = c.f("extrapolation_value", 0);
  s.exclude_outside = c.i("exclude_outside", 0) != 0;
  s.antialias = c.i("antialias", 0) != 0;
  std::vector<ResizeAxis> axes = unchanged(c);
  std::vector<int64_t> which = c.ints("axes", every_axis(c));
  for (int64_t& a : which) a = c.axis(a, c.rank(0));
  bool roi = s.transform == "tf_crop_and_resize";
  if (roi) {
    c.require(c.has(1), "tf_crop_and_resize needs a roi");
    std::vector<double> box = c.known_floats(1, "roi");
    c.require(box.size() == 2 * which.size(), "the roi has the wrong length");
    for (size_t k = 0; k < which.size(); ++k)
      axes[which[k]].roi_start = box[k], axes[which[k]].roi_end = box[k + which.size()];
  }
  bool scales = c.has(2) && elements(c.shape(2)) > 0;
  c.require(scales != (c.has(3) && elements(c.shape(3)) > 0), "expected either scales or sizes");
  if (scales)
    set_scales(c, axes, which, c.known_floats(2, "scales"));
  else
    set_sizes(c, axes, which, c.known_ints(3, "sizes"));
  apply(c, s, axes, roi);
}

constexpr ConvertEntry kTable[] = {{"Upsample", 7, upsample}, {"Resize", 10, upsample}, {"Resize", 11, resize}};

}  // namespace

std::span<const ConvertEntry> resize_table() { return kTable; }

}  // namespace partita
