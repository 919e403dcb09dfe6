// GridSample: an image read at positions that the graph computes. Col2Im: windows added up into the image they came
// from.
#include <cmath>

#include "base/cat.h"
#include "base/quote.h"
#include "frontend/import/convert_table.h"

namespace partita {
namespace {

struct SampleSettings {
  std::string mode, padding;
  bool corners = false;
};

// One of the input positions that an output position takes from along a dimension: index (a whole number, in the
// grid's float type) and weight.
struct Tap {
  ValueId index, weight;
};

ValueId clamped(Emitter& e, ValueId v, double low, double high) {
  return e.min(e.max(v, e.like(v, low)), e.like(v, high));
}

// v thrown back at `low` and `high` as often as it takes.
ValueId reflected(Emitter& e, ValueId v, double low, double high) {
  double span = high - low;
  if (span <= 0) return e.scale(v, 0);
  ValueId t = e.emit("abs", {e.shift(v, -low)}), flips = e.emit("floor", {e.scale(t, 1 / span)});
  ValueId rest = e.sub(t, e.scale(flips, span));
  ValueId half = e.scale(flips, 0.5), odd = e.lt(e.emit("floor", {half}), half);
  return e.select(odd, e.shift(e.neg(rest), high), e.shift(rest, low));
}

// Keys' cubic kernel with a = -0.75 at distance `d` from 0 to 2.
ValueId cubic(Emitter& e, ValueId d, bool inner) {
  const double a = -0.75;
  auto horner = [&](double c3, double c2, double c1, double c0) {
    ValueId v = e.shift(e.scale(d, c3), c2);
    v = e.shift(e.mul(v, d), c1);
    return e.shift(e.mul(v, d), c0);
  };
  return inner ? horner(a + 2, -(a + 3), 0, 1) : horner(a, -5 * a, 8 * a, -4 * a);
}

// The taps of coordinates `g` (-1 to 1) among `n` input positions.
std::vector<Tap> taps(const Conversion& c, const SampleSettings& s, ValueId g, int64_t n) {
  Emitter& e = c.e;
  double size = static_cast<double>(n), last = size - 1;
  ValueId at = s.corners ? e.scale(e.shift(g, 1), last / 2) : e.shift(e.scale(e.shift(g, 1), size / 2), -0.5);
  auto inside = [&](ValueId v) {
    if (s.padding == "reflection")
      v = s.corners ? reflected(e, v, 0, last) : clamped(e, reflected(e, v, -0.5, size - 0.5), 0, last);
    return s.padding == "border" ? clamped(e, v, 0, last) : v;
  };
  if (s.mode != "cubic") at = inside(at);
  std::vector<Tap> out;
  if (s.mode == "nearest") {
    out.push_back({e.emit("round", {at}), e.like(at, 1)});
  } else {
    ValueId floor = e.emit("floor", {at}), t = e.sub(at, floor), rest = e.shift(e.neg(t), 1);
    if (s.mode == "linear") {
      out = {{floor, rest}, {e.shift(floor, 1), t}};
    } else {
      out = {{e.shift(floor, -1), cubic(e, e.shift(t, 1), false)},
             {floor, cubic(e, t, true)},
             {e.shift(floor, 1), cubic(e, rest, true)},
             {e.shift(floor, 2), cubic(e, e.shift(rest, 1), false)}};
    }
  }
  for (Tap& tap : out) {
    if (s.padding == "zeros") {
      ValueId zero = e.like(tap.index, 0);
      ValueId within = e.emit("and", {e.le(zero, tap.index), e.le(tap.index, e.like(tap.index, last))});
      ValueId weight = e.broadcast_to(tap.weight, e.shape(tap.index));
      tap.weight = e.select(within, weight, zero);
    } else if (s.mode == "cubic") {
      tap.index = inside(tap.index);
    }
    tap.index = e.cast(clamped(e, tap.index, 0, last), DType::kI64);
  }
  return out;
}

void grid_sample(Conversion& c) {
  Emitter& e = c.e;
  Shape x = c.shape(0), grid = c.shape(1);
  size_t dims = x.size() - 2;
  c.require(x.size() >= 3 && x.size() <= 5 && grid.size() == x.size() && grid[0] == x[0] &&
                grid.back() == static_cast<int64_t>(dims) && elements(x) > 0,
            cat("expected X [n, c, …] and a grid [n, …, dimensions], found ", to_string(x), " and ", to_string(grid)));
  SampleSettings s{c.s("mode", c.version < 20 ? "bilinear" : "linear"), c.s("padding_mode", "zeros"),
                   c.i("align_corners", 0) != 0};
  if (s.mode == "bilinear") s.mode = "linear";
  if (s.mode == "bicubic") s.mode = "cubic";
  c.require(s.mode == "linear" || s.mode == "nearest" || s.mode == "cubic",
            cat("mode ", quote(s.mode), " is not known"));
  c.require(s.padding == "zeros" || s.padding == "border" || s.padding == "reflection",
            cat("padding_mode ", quote(s.padding), " is not known"));
  Shape spatial(grid.begin() + 1, grid.end() - 1), out = {x[0], x[1]};
  int64_t points = elements(spatial);
  out.insert(out.end(), spatial.begin(), spatial.end());
  ValueId positions = e.cast(e.reshape(c.in(1), {grid[0], points, grid.back()}), c.dtype(0));
  ValueId image = e.reshape(c.in(0), {x[0], x[1], elements(x) / (x[0] * x[1])});

  // Every combination of the dimensions' taps: index into the flattened image, product of weights. The grid's last
  // dimension counts the image's from the end.
  std::vector<Tap> all;
  for (size_t d = 0; d < dims; ++d) {
    int64_t from = static_cast<int64_t>(dims - 1 - d), n = x[d + 2];
    ValueId g = e.reshape(e.slice(positions, 2, from, from + 1), {x[0], points});
    std::vector<Tap> next;
    for (const Tap& here : taps(c, s, g, n)) {
      if (all.empty()) next.push_back(here);
      for (const Tap& before : all)
        next.push_back(
            {e.add(e.scale(before.index, static_cast<double>(n)), here.index), e.mul(before.weight, here.weight)});
    }
    all = std::move(next);
  }
  ValueId y = kNoValue;
  for (const Tap& tap : all) {
    ValueId index = e.broadcast_to(e.reshape(tap.index, {x[0], 1, points}), {x[0], x[1], points});
    ValueId part = e.emit("take_along", {image, index}, {{"dim", int64_t{2}}});
    ValueId weight = e.rank(tap.weight) == 0 ? tap.weight : e.reshape(tap.weight, {x[0], 1, points});
    part = e.mul(part, weight);
    y = y == kNoValue ? part : e.add(y, part);
  }
  c.out(e.reshape(y, out));
}

// A transposed convolution, each channel on its own, whose kernel k is 1 at window position k.
void col2im(Conversion& c) {
  Emitter& e = c.e;
  std::vector<int64_t> image = c.known_ints(1, "image_shape"), block = c.known_ints(2, "block_shape");
  size_t n = image.size();
  c.require(c.rank(0) == 3 && n >= 1 && n <= 3 && block.size() == n, "expected columns [n, c * window, windows]");
  std::vector<int64_t> strides = c.ints("strides", std::vector<int64_t>(n, 1)),
                       dilations = c.ints("dilations", std::vector<int64_t>(n, 1)),
                       pads = c.ints("pads", std::vector<int64_t>(2 * n, 0));
  c.require(strides.size() == n && dilations.size() == n && pads.size() == 2 * n,
            "attributes do not fit the spatial dimensions");
  Shape columns = c.shape(0), kernel, windows = {columns[0], columns[1]};
  int64_t window = 1, count = 1;
  for (size_t d = 0; d < n; ++d) {
    constexpr int64_t kMax = 1 << 20;
    c.require(image[d] > 0 && image[d] < kMax && block[d] > 0 && block[d] < 4096 && strides[d] > 0 &&
                  strides[d] < kMax && dilations[d] > 0 && dilations[d] < kMax && pads[d] >= 0 && pads[d] < kMax &&
                  pads[n + d] >= 0 && pads[n + d] < kMax,
              "sizes are out of range");
    int64_t span = image[d] + pads[d] + pads[n + d] - dilations[d] * (block[d] - 1) - 1;
    c.require(span >= 0, "the window is larger than the padded image");
    windows.push_back(span / strides[d] + 1);
    count *= windows.back();
    window *= block[d];
    c.require(window <= 4096, "the window is too large");
  }
  c.require(columns[2] == count && columns[1] % window == 0,
            cat("expected [n, a multiple of ", window, ", ", count, "], found ", to_string(columns)));
  int64_t channels = columns[1] / window;
  kernel = {window, 1};
  kernel.insert(kernel.end(), block.begin(), block.end());
  std::vector<double> ones(static_cast<size_t>(window * window), 0);
  for (int64_t k = 0; k < window; ++k) ones[static_cast<size_t>(k * window + k)] = 1;
  // One channel after the other lies in the batch: [n * c, window, …] -> [n * c, 1, image].
  windows[0] = columns[0] * channels, windows[1] = window;
  Shape out = {windows[0], 1}, result = {columns[0], channels};
  out.insert(out.end(), image.begin(), image.end());
  result.insert(result.end(), image.begin(), image.end());
  Attrs attrs = {{"strides", strides},
                 {"pads_low", std::vector<int64_t>(pads.begin(), pads.begin() + static_cast<ptrdiff_t>(n))},
                 {"pads_high", std::vector<int64_t>(pads.begin() + static_cast<ptrdiff_t>(n), pads.end())},
                 {"dilations", dilations},
                 {"groups", int64_t{1}},
                 {"input_shape", out}};
  ValueId y = e.emit("conv_grad_data", {e.reshape(c.in(0), windows), e.floats(c.dtype(0), kernel, ones)}, attrs);
  c.out(e.reshape(y, result));
}

constexpr ConvertEntry kTable[] = {{"GridSample", 16, grid_sample}, {"Col2Im", 18, col2im}};

}  // namespace

std::span<const ConvertEntry> sampling_table() { return kTable; }

}  // namespace partita
