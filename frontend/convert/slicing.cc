// Operators that cut, join and pad.
#include <algorithm>
#include <cstdlib>
#include <limits>

#include "base/cat.h"
#include "base/quote.h"
#include "frontend/import/convert_table.h"

namespace partita {
namespace {

void concat(Conversion& c) {
  std::vector<ValueId> parts;
  int axis = c.axis(c.i("axis", 1), c.rank(0));
  for (int k = 0; k < c.count(); ++k) {
    c.require(c.rank(k) == c.rank(0), "the ranks of the inputs differ");
    bool empty = c.count() > 1 && c.shape(k)[axis] == 0;
    if (!empty) parts.push_back(c.in(k));
  }
  if (parts.empty()) parts.push_back(c.in(0));
  c.out(c.e.concat(std::move(parts), axis));
}

void emit_parts(Conversion& c, int axis, const std::vector<int64_t>& sizes) {
  int64_t at = 0, total = 0;
  for (int64_t size : sizes) {
    c.require(size >= 0 && size <= c.shape(0)[axis], "a part's size is out of range");
    total += size;
  }
  c.require(total == c.shape(0)[axis], cat("the parts add up to ", total, ", the axis has ", c.shape(0)[axis]));
  c.require(sizes.size() >= c.outputs.size(), "there are more outputs than parts");
  for (size_t k = 0; k < c.outputs.size(); ++k) {
    c.out(static_cast<int>(k), c.e.slice(c.in(0), axis, at, at + sizes[k]));
    at += sizes[k];
  }
}

void split(Conversion& c) {
  int axis = c.axis(c.i("axis", 0), c.rank(0));
  int64_t size = c.shape(0)[axis], parts = static_cast<int64_t>(c.outputs.size());
  if (c.version < 13 ? c.set("split") : c.has(1))
    return emit_parts(c, axis, c.version < 13 ? c.ints("split") : c.known_ints(1, "split"));
  if (c.set("num_outputs")) parts = c.i("num_outputs");
  c.require(parts > 0 && parts <= 1 << 20, "there are no outputs");
  int64_t chunk = (size + parts - 1) / parts;
  c.require(c.version >= 18 || chunk * parts == size,
            cat("the axis of size ", size, " cannot be split into ", parts, " equal parts"));
  std::vector<int64_t> sizes;
  for (int64_t at = 0, k = 0; k < parts; ++k, at += chunk) sizes.push_back(std::clamp<int64_t>(size - at, 0, chunk));
  emit_parts(c, axis, sizes);
}

struct Range1 {
  int64_t start, limit, stride;
  bool reversed;
};

// Python's slice start:end:step of `size` elements, as an ascending range.
Range1 python_slice(int64_t start, int64_t end, int64_t step, int64_t size) {
  bool forward = step > 0;
  auto place = [&](int64_t at) {
    if (at < 0)
      at = at < -size ? -1 : at + size;  // anything before the first element
    else if (at > size)
      at = size;
    return at;
  };
  int64_t low = std::clamp(place(start), forward ? int64_t{0} : int64_t{-1}, forward ? size : size - 1);
  if (start < -size && !forward) low = -1;
  int64_t high = place(end);
  high = forward ? std::clamp(high, int64_t{0}, size) : end < -size ? -1 : std::clamp(high, int64_t{-1}, size - 1);
  int64_t stride = step == std::numeric_limits<int64_t>::min() ? std::numeric_limits<int64_t>::max() : std::abs(step);
  int64_t span = forward ? high - low : low - high;
  if (span <= 0 || size == 0) return {0, 0, 1, false};
  int64_t count = (span - 1) / stride + 1;
  stride = std::min(stride, size);
  if (forward) return {low, low + (count - 1) * stride + 1, stride, false};
  return {low - (count - 1) * stride, low + 1, stride, true};
}

void slice(Conversion& c) {
  Emitter& e = c.e;
  bool inputs = c.version >= 10;
  Shape s = c.shape(0);
  int rank = static_cast<int>(s.size());
  std::vector<int64_t> starts = inputs ? c.known_ints(1, "starts") : c.ints("starts"),
                       ends = inputs ? c.known_ints(2, "ends") : c.ints("ends");
  std::vector<int64_t> axes, steps;
  if (inputs && c.has(3)) axes = c.known_ints(3, "axes");
  if (!inputs && c.set("axes")) axes = c.ints("axes");
  if (inputs && c.has(4)) steps = c.known_ints(4, "steps");
  if (axes.empty()) {
    for (size_t k = 0; k < starts.size(); ++k) axes.push_back(static_cast<int64_t>(k));
  }
  if (steps.empty()) steps.assign(starts.size(), 1);
  c.require(starts.size() == ends.size() && starts.size() == axes.size() && starts.size() == steps.size(),
            "starts, ends, axes and steps differ in length");
  c.axes(axes, rank);
  std::vector<int64_t> low(s.size(), 0), high = s, stride(s.size(), 1), reversed;
  for (size_t k = 0; k < axes.size(); ++k) {
    int axis = c.axis(axes[k], rank);
    c.require(steps[k] != 0, "a step is 0");
    Range1 r = python_slice(starts[k], ends[k], steps[k], s[axis]);
    low[axis] = r.start, high[axis] = r.limit, stride[axis] = r.stride;
    if (r.reversed && r.limit - r.start > 1) reversed.push_back(axis);
  }
  ValueId x = c.in(0);
  bool whole = high == s && std::all_of(low.begin(), low.end(), [](int64_t v) { return v == 0; }) &&
               std::all_of(stride.begin(), stride.end(), [](int64_t v) { return v == 1; });
  if (!whole) x = e.emit("slice", {x}, {{"starts", low}, {"limits", high}, {"strides", stride}});
  if (!reversed.empty()) x = e.emit("reverse", {x}, {{"dims", reversed}});
  c.out(x);
}

// Index along one dimension of size n that position p (possibly outside) reads.
int64_t reflected(int64_t p, int64_t n) {
  if (n == 1) return 0;
  int64_t period = 2 * (n - 1);
  p = ((p % period) + period) % period;
  return p < n ? p : period - p;
}

void pad(Conversion& c) {
  Emitter& e = c.e;
  std::string mode = c.s("mode", "constant");
  bool inputs = c.version >= 11;
  Shape s = c.shape(0);
  int rank = static_cast<int>(s.size());
  std::vector<int64_t> pads = inputs ? c.known_ints(1, "pads") : c.ints("pads"), axes;
  if (inputs && c.has(3))
    axes = c.known_ints(3, "axes");
  else
    for (int d = 0; d < rank; ++d) axes.push_back(d);
  c.require(pads.size() == 2 * axes.size(), cat("expected ", 2 * axes.size(), " pads, found ", pads.size()));
  std::vector<int64_t> low(s.size(), 0), high(s.size(), 0);
  for (size_t k = 0; k < axes.size(); ++k) {
    int axis = c.axis(axes[k], rank);
    low[axis] = pads[k], high[axis] = pads[k + axes.size()];
    c.require(std::abs(low[axis]) < int64_t{1} << 40 && std::abs(high[axis]) < int64_t{1} << 40, "a pad is too large");
  }
  ValueId x = c.in(0);
  for (int d = 0; d < rank; ++d) {
    int64_t from = std::max<int64_t>(0, -low[d]), to = s[d] - std::max<int64_t>(0, -high[d]);
    c.require(from <= to, cat("dimension ", d, " has nothing left after negative padding"));
    x = e.slice(x, d, from, to);
    low[d] = std::max<int64_t>(0, low[d]), high[d] = std::max<int64_t>(0, high[d]);
  }
  if (mode == "constant") {
    ValueId value = e.like(x, inputs ? 0 : c.f("value", 0));
    if (inputs && c.has(2)) {
      c.require(elements(c.shape(2)) == 1, "the padding value must be a scalar");
      value = e.reshape(c.in(2), {});
    }
    return c.out(e.pad(x, value, low, high));
  }
  c.require(mode == "reflect" || mode == "edge" || mode == "wrap", cat("mode ", quote(mode), " is not known"));
  for (int d = 0; d < rank; ++d) {
    if (low[d] == 0 && high[d] == 0) continue;
    int64_t n = e.shape(x)[d];
    c.require(n > 0 && low[d] + high[d] + n <= Emitter::kMaxFolded, "a padded dimension is empty or too large");
    std::vector<int64_t> index;
    for (int64_t p = -low[d]; p < n + high[d]; ++p) {
      index.push_back(mode == "edge"   ? std::clamp<int64_t>(p, 0, n - 1)
                      : mode == "wrap" ? ((p % n) + n) % n
                                       : reflected(p, n));
    }
    x = e.gather(x, e.ints(index), d);
  }
  c.out(x);
}

constexpr ConvertEntry kTable[] = {
    {"Concat", 4, concat},
    {"Split", 2, split},
    {"Slice", 1, slice},
    {"Pad", 2, pad},
};

}  // namespace

std::span<const ConvertEntry> slicing_table() { return kTable; }

}  // namespace partita
