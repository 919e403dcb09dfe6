// Convolutions and pools.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/cat.h"
#include "base/quote.h"
#include "frontend/import/convert_table.h"

namespace partita {
namespace {

using Ints = std::vector<int64_t>;

// Geometry of a sliding window over the spatial dimensions.
struct Window {
  Ints kernel, strides, dilations, low, high, input;
  Ints ceil_output;  // where ceil_mode asks for more windows than the pads give
  bool include_ceil = false;

  size_t dims() const { return kernel.size(); }
  int64_t extent(size_t d) const { return (kernel[d] - 1) * dilations[d] + 1; }
  int64_t output(size_t d) const { return (input[d] + low[d] + high[d] - extent(d)) / strides[d] + 1; }
};

void auto_pad(const Conversion& c, const std::string& mode, Window& w) {
  if (mode == "VALID") {
    w.low.assign(w.dims(), 0), w.high.assign(w.dims(), 0);
  } else if (mode != "NOTSET") {
    c.require(mode == "SAME_UPPER" || mode == "SAME_LOWER", cat("attribute auto_pad: ", quote(mode), " is not known"));
    for (size_t d = 0; d < w.dims(); ++d) {
      int64_t out = (w.input[d] + w.strides[d] - 1) / w.strides[d];
      int64_t total = std::max<int64_t>(0, (out - 1) * w.strides[d] + w.extent(d) - w.input[d]);
      w.low[d] = mode == "SAME_UPPER" ? total / 2 : total - total / 2;
      w.high[d] = total - w.low[d];
    }
  }
}

Window window(const Conversion& c, const Shape& x, Ints kernel) {
  Window w;
  size_t n = x.size() - 2;
  w.input.assign(x.begin() + 2, x.end());
  w.kernel = std::move(kernel);
  w.strides = c.ints("strides", Ints(n, 1));
  w.dilations = c.ints("dilations", Ints(n, 1));
  Ints pads = c.ints("pads", Ints(2 * n, 0));
  c.require(w.kernel.size() == n && w.strides.size() == n && w.dilations.size() == n && pads.size() == 2 * n,
            cat("kernel_shape, strides, dilations and pads must fit ", n, " spatial dimensions"));
  w.low.assign(pads.begin(), pads.begin() + static_cast<std::ptrdiff_t>(n));
  w.high.assign(pads.begin() + static_cast<std::ptrdiff_t>(n), pads.end());
  constexpr int64_t kLimit = int64_t{1} << 31;
  for (size_t d = 0; d < n; ++d) {
    c.require(w.kernel[d] > 0 && w.kernel[d] < kLimit && w.strides[d] > 0 && w.strides[d] < kLimit &&
                  w.dilations[d] > 0 && w.dilations[d] < kLimit,
              "kernel_shape, strides and dilations must be positive");
    c.require(std::abs(w.low[d]) < kLimit && std::abs(w.high[d]) < kLimit, "a pad is too large");
  }
  auto_pad(c, c.s("auto_pad", "NOTSET"), w);
  for (size_t d = 0; d < n; ++d) c.require(w.low[d] >= 0 && w.high[d] >= 0, "negative pads are not supported here");
  return w;
}

void check_rank(const Conversion& c) {
  c.require(c.rank(0) >= 3 && c.rank(0) <= 5, "expected [n, c, …] with 1 to 3 spatial dimensions");
}

Attrs conv_attrs(const Window& w, int64_t groups) {
  return {{"strides", w.strides},
          {"pads_low", w.low},
          {"pads_high", w.high},
          {"dilations", w.dilations},
          {"groups", groups}};
}

ValueId with_bias(const Conversion& c, ValueId y, int k) {
  if (!c.has(k)) return y;
  Shape s(c.e.shape(y).size(), 1);
  s[1] = c.e.shape(y)[1];
  c.require(elements(c.shape(k)) == s[1], "expected one bias per output channel");
  return c.e.add(y, c.e.reshape(c.in(k), s));
}

void conv(Conversion& c) {
  check_rank(c);
  const Shape& k = c.shape(1);
  c.require(k.size() == c.shape(0).size(), "the weight's rank must be the input's");
  Window w = window(c, c.shape(0), Ints(k.begin() + 2, k.end()));
  c.require(c.ints("kernel_shape", w.kernel) == w.kernel, "attribute kernel_shape differs from the weight's shape");
  c.out(with_bias(c, c.e.emit("conv", {c.in(0), c.in(1)}, conv_attrs(w, c.i("group", 1))), 2));
}

// The transposed convolution is the gradient of a convolution with the same attributes with respect to its input. What
// output_padding adds beyond a stride, no window reaches: zeros.
void conv_transpose(Conversion& c) {
  Emitter& e = c.e;
  check_rank(c);
  Shape x = c.shape(0), k = c.shape(1);
  c.require(k.size() == x.size(), "the weight's rank must be the input's");
  size_t n = x.size() - 2;
  int64_t groups = c.i("group", 1);
  std::string mode = c.s("auto_pad", "NOTSET");
  Window w;
  w.kernel.assign(k.begin() + 2, k.end());
  w.input.assign(x.begin() + 2, x.end());
  w.strides = c.ints("strides", Ints(n, 1));
  w.dilations = c.ints("dilations", Ints(n, 1));
  Ints pads = c.ints("pads", Ints(2 * n, 0)), extra = c.ints("output_padding", Ints(n, 0)),
       wanted = c.ints("output_shape");
  if (wanted.size() == n + 2) wanted.erase(wanted.begin(), wanted.begin() + 2);
  c.require(w.strides.size() == n && w.dilations.size() == n && pads.size() == 2 * n && extra.size() == n &&
                (wanted.empty() || wanted.size() == n),
            "attributes do not fit the spatial dimensions");
  bool same = mode == "SAME_UPPER" || mode == "SAME_LOWER";
  Shape out = {x[0], k[1] * groups};
  std::vector<int64_t> zeros(x.size(), 0), tail(x.size(), 0);
  for (size_t d = 0; d < n; ++d) {
    c.require(w.strides[d] > 0 && w.strides[d] < 1 << 20 && w.dilations[d] > 0 && w.dilations[d] < 1 << 20 &&
                  extra[d] >= 0 && extra[d] < 1 << 20 && std::abs(pads[d]) < 1 << 20 &&
                  std::abs(pads[n + d]) < 1 << 20 && w.input[d] < int64_t{1} << 40,
              "attributes are out of range");
    int64_t full = w.strides[d] * (w.input[d] - 1) + w.extent(d);
    int64_t low = mode == "NOTSET" ? pads[d] : 0, high = mode == "NOTSET" ? pads[n + d] : 0;
    int64_t size = full + extra[d] - low - high;
    if (!wanted.empty() || same) {
      size = wanted.empty() ? w.input[d] * w.strides[d] : wanted[d];
      int64_t total = std::max<int64_t>(0, full + extra[d] - size);
      low = mode == "SAME_UPPER" ? total / 2 : total - total / 2;
      high = total - low;
    }
    c.require(size > 0 && low >= 0 && high >= 0, "the result would be empty");
    int64_t reach = std::min(size, full - low - high + w.strides[d] - 1);
    w.low.push_back(low), w.high.push_back(high);
    out.push_back(reach);
    tail[d + 2] = size - reach;
  }
  Attrs attrs = conv_attrs(w, groups);
  attrs.set("input_shape", out);
  ValueId y = e.emit("conv_grad_data", {c.in(0), c.in(1)}, attrs);
  c.out(with_bias(c, e.pad(y, e.like(y, 0), zeros, tail), 2));
}

// ceil_mode: as many windows as start inside the input or its low pad; the pads at the end grow to what the last one
// needs.
void apply_ceil(const Conversion& c, Window& w) {
  if (c.i("ceil_mode", 0) == 0) return;
  for (size_t d = 0; d < w.dims(); ++d) {
    int64_t span = w.input[d] + w.low[d] + w.high[d] - w.extent(d);
    int64_t out = (span + w.strides[d] - 1) / w.strides[d] + 1;
    if ((out - 1) * w.strides[d] >= w.input[d] + w.low[d]) --out;
    w.high[d] = std::max<int64_t>(0, (out - 1) * w.strides[d] + w.extent(d) - w.input[d] - w.low[d]);
  }
}

Window pool_window(const Conversion& c) {
  check_rank(c);
  Window w = window(c, c.shape(0), c.ints("kernel_shape"));
  for (size_t d = 0; d < w.dims(); ++d)
    c.require(w.input[d] + w.low[d] + w.high[d] >= w.extent(d), "the kernel is larger than the padded input");
  return w;
}

Attrs pool_attrs(const Window& w) {
  return {{"kernel", w.kernel}, {"strides", w.strides}, {"pads_low", w.low}, {"pads_high", w.high}};
}

// Position within the whole tensor, from that within one image.
ValueId whole_index(Conversion& c, ValueId index) {
  Emitter& e = c.e;
  Shape x = c.shape(0);
  int64_t image = elements(Shape(x.begin() + 2, x.end()));
  ValueId at = e.cast(index, DType::kI64);
  if (c.i("storage_order", 0) != 0) {  // column-major within the image
    ValueId rest = at, column = kNoValue;
    int64_t stride = image;
    for (size_t d = x.size(); d-- > 2;) {
      stride /= x[d];
      ValueId size = e.like(at, static_cast<double>(x[d]));
      ValueId part = e.scale(e.emit("mod", {rest, size}), static_cast<double>(stride));
      column = column == kNoValue ? part : e.add(column, part);
      rest = e.div(rest, size);
    }
    at = column;
  }
  Shape images(x.size(), 1);
  images[0] = x[0], images[1] = x[1];
  return e.add(at, e.scale(e.reshape(e.iota(x[0] * x[1]), images), static_cast<double>(image)));
}

void max_pool(Conversion& c) {
  Emitter& e = c.e;
  Window w = pool_window(c);
  apply_ceil(c, w);
  Attrs attrs = pool_attrs(w);
  attrs.set("dilations", w.dilations);
  DType t = c.dtype(0);
  auto out = e.emit_all("max_pool", {e.cast(c.in(0), is_float(t) ? t : DType::kF32)}, attrs);
  c.out(0, e.cast(out[0], t));
  if (c.wants(1)) c.out(1, whole_index(c, out[1]));
}

double product(const Ints& v) {
  double p = 1;
  for (int64_t x : v) p *= static_cast<double>(x);
  return p;
}

// Sums of the windows' elements.
ValueId window_sums(Conversion& c, ValueId x, const Window& w) {
  Emitter& e = c.e;
  if (std::all_of(w.dilations.begin(), w.dilations.end(), [](int64_t d) { return d == 1; })) {
    Attrs attrs = pool_attrs(w);
    attrs.set("count_include_pad", int64_t{1});
    return e.scale(e.emit("avg_pool", {x}, attrs), product(w.kernel));
  }
  int64_t channels = e.shape(x)[1];
  Shape k = {channels, 1};
  k.insert(k.end(), w.kernel.begin(), w.kernel.end());
  return e.emit("conv", {x, e.full(e.dtype(x), k, 1)}, conv_attrs(w, channels));
}

void average_pool(Conversion& c) {
  Emitter& e = c.e;
  Window plain = pool_window(c), w = plain;
  apply_ceil(c, w);
  bool include = c.i("count_include_pad", 0) != 0;
  bool simple = std::all_of(w.dilations.begin(), w.dilations.end(), [](int64_t d) { return d == 1; });
  if (simple && (w.high == plain.high || !include)) {
    Attrs attrs = pool_attrs(w);
    attrs.set("count_include_pad", int64_t{include});
    return c.out(e.emit("avg_pool", {c.in(0)}, attrs));
  }
  ValueId y = window_sums(c, c.in(0), w);
  for (size_t d = 0; d < w.dims(); ++d) {  // 1 / elements counted along each dimension
    std::vector<double> share;
    int64_t first = include ? -w.low[d] : 0, end = w.input[d] + (include ? plain.high[d] : 0);
    for (int64_t o = 0; o < w.output(d); ++o) {
      int64_t count = 0;
      for (int64_t k = 0; k < w.kernel[d]; ++k) {
        int64_t at = o * w.strides[d] - w.low[d] + k * w.dilations[d];
        count += at >= first && at < end;
      }
      share.push_back(1.0 / static_cast<double>(std::max<int64_t>(count, 1)));
    }
    Shape s(w.dims() + 2, 1);
    s[d + 2] = static_cast<int64_t>(share.size());
    y = e.mul(y, e.floats(e.dtype(y), s, share));
  }
  c.out(y);
}

ValueId power(Emitter& e, ValueId x, double p) {
  if (p == 1) return x;
  if (p == 2) return e.mul(x, x);
  return e.emit("pow", {x, e.like(x, p)});
}

void lp_pool(Conversion& c) {
  Emitter& e = c.e;
  Window w = pool_window(c);
  apply_ceil(c, w);
  double p = static_cast<double>(c.i("p", 2));
  c.require(p > 0, "attribute p must be positive");
  ValueId sums = window_sums(c, power(e, e.emit("abs", {c.in(0)}), p), w);
  c.out(p == 2 ? e.emit("sqrt", {sums}) : power(e, sums, 1 / p));
}

Ints spatial(const Conversion& c) {
  c.require(c.rank(0) >= 2, "expected [n, c, …]");
  Ints dims(static_cast<size_t>(c.rank(0) - 2));
  std::iota(dims.begin(), dims.end(), 2);
  return dims;
}

void global_average_pool(Conversion& c) { c.out(c.e.mean(c.in(0), spatial(c), true)); }
void global_max_pool(Conversion& c) { c.out(c.e.reduce("reduce_max", c.in(0), spatial(c), true)); }

void global_lp_pool(Conversion& c) {
  Emitter& e = c.e;
  double p = static_cast<double>(c.i("p", 2));
  c.require(p > 0, "attribute p must be positive");
  ValueId sums = e.sum(power(e, e.emit("abs", {c.in(0)}), p), spatial(c), true);
  c.out(p == 2 ? e.emit("sqrt", {sums}) : power(e, sums, 1 / p));
}

constexpr ConvertEntry kTable[] = {
    {"Conv", 1, conv},
    {"ConvTranspose", 1, conv_transpose},
    {"MaxPool", 1, max_pool},
    {"AveragePool", 1, average_pool},
    {"LpPool", 2, lp_pool},
    {"GlobalAveragePool", 1, global_average_pool},
    {"GlobalMaxPool", 1, global_max_pool},
    {"GlobalLpPool", 2, global_lp_pool},
};

}  // namespace

std::span<const ConvertEntry> convolution_table() { return kTable; }

}  // namespace partita
