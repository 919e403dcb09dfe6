// Constants, shapes of values, and operators that only move elements.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "frontend/convert_table.h"

namespace partita {
namespace {

Shape checked(const Conversion& c, Shape shape) {
  auto n = checked_elements(shape);
  c.require(n.has_value(), cat("a tensor of ", to_string(shape), " elements is too large"));
  return shape;
}

void constant(Conversion& c) {
  Emitter& e = c.e;
  if (const OnnxTensor* t = c.tensor("value")) {
    if (t->type.dtype == DType::kInvalid) {
      return c.out(0, {OnnxValue::Kind::kUnusable, kNoValue, nullptr,
                       cat("of element type ", onnx_element_name(t->element), ", which is not supported")});
    }
    c.require(t->literal.has_value(), "the constant's values lie in a file that is missing");
    return c.out(e.constant(*t->literal));
  }
  if (c.set("value_float")) return c.out(e.scalar(DType::kF32, c.f("value_float", 0)));
  if (c.set("value_int")) return c.out(e.ints(DType::kI64, {}, {c.i("value_int")}));
  if (c.set("value_ints")) return c.out(e.ints(c.ints("value_ints")));
  if (c.set("value_floats")) {
    auto v = c.floats("value_floats");
    return c.out(e.floats(DType::kF32, {static_cast<int64_t>(v.size())}, v));
  }
  if (c.set("value_string") || c.set("value_strings"))
    return c.out(0, {OnnxValue::Kind::kUnusable, kNoValue, nullptr, "a string, which is not supported"});
  c.unsupported("the constant has no value of a kind that is supported");
}

void shape_of(Conversion& c) {
  Shape s = c.shape(0);
  int64_t rank = static_cast<int64_t>(s.size());
  auto place = [&](int64_t at) { return std::clamp(at < 0 ? at + rank : at, int64_t{0}, rank); };
  int64_t start = place(c.i("start", 0)), end = std::max(start, place(c.i("end", rank)));
  c.out(c.e.ints(Shape(s.begin() + start, s.begin() + end)));
}

void size_of(Conversion& c) { c.out(c.e.ints(DType::kI64, {}, {elements(c.shape(0))})); }

void constant_of_shape(Conversion& c) {
  Emitter& e = c.e;
  Shape shape = c.known_ints(0, "shape");
  for (int64_t d : shape) c.require(d >= 0, cat("dimension ", d, " is negative"));
  checked(c, shape);
  const OnnxTensor* value = c.tensor("value");
  if (!value) return c.out(e.full(DType::kF32, shape, 0));
  c.require(value->literal && elements(value->type.shape) == 1, "attribute value: expected a tensor of one element");
  c.out(e.broadcast_to(e.reshape(e.constant(*value->literal), {}), shape));
}

void range(Conversion& c) {
  Emitter& e = c.e;
  DType t = c.dtype(0);
  int64_t n = 0;
  if (is_float(t)) {
    double start = c.known_float(0, "start"), limit = c.known_float(1, "limit"), delta = c.known_float(2, "delta");
    c.require(delta != 0, "the delta must not be 0");
    double count = std::max(0.0, std::ceil((limit - start) / delta));
    c.require(count < 1e15, "the range is too long");
    n = static_cast<int64_t>(count);
  } else {
    int64_t start = c.known_int(0, "start"), limit = c.known_int(1, "limit"), delta = c.known_int(2, "delta");
    c.require(delta != 0, "the delta must not be 0");
    __int128 span = static_cast<__int128>(limit) - start, step = delta;
    __int128 count = step > 0 ? (span + step - 1) / step : (span + step + 1) / step;
    if ((step > 0) != (span > 0) || span == 0) count = 0;
    c.require(count < (__int128{1} << 50), "the range is too long");
    n = static_cast<int64_t>(count);
  }
  c.out(e.add(e.mul(e.iota(n, t), e.reshape(c.in(2), {})), e.reshape(c.in(0), {})));
}

void reshape(Conversion& c) {
  Shape from = c.shape(0), to = c.known_ints(1, "shape");
  bool allow_zero = c.i("allowzero", 0) != 0;
  int free = -1;
  int64_t known = 1;
  for (size_t d = 0; d < to.size(); ++d) {
    if (to[d] == 0 && !allow_zero) {
      c.require(d < from.size(), cat("dimension ", d, " is to be copied, but the input has rank ", from.size()));
      to[d] = from[d];
    }
    if (to[d] == -1) {
      c.require(free < 0, "two dimensions are -1");
      free = static_cast<int>(d);
    } else {
      c.require(to[d] >= 0, cat("dimension ", to[d], " is negative"));
      c.require(!__builtin_mul_overflow(known, to[d], &known), "the new shape is too large");
    }
  }
  int64_t n = elements(from);
  if (free >= 0) {
    c.require(known > 0 && n % known == 0, cat("cannot reshape ", to_string(from), " into ", to_string(to)));
    to[free] = n / known;
  }
  c.require(checked_elements(to) == n,
            cat("cannot reshape ", to_string(from), " into ", to_string(to),
                ": the element counts differ; was the model exported for another batch or sequence size?"));
  c.out(c.e.reshape(c.in(0), to));
}

void flatten(Conversion& c) {
  const Shape& s = c.shape(0);
  int64_t rank = static_cast<int64_t>(s.size()), axis = c.i("axis", 1);
  c.require(axis >= -rank && axis <= rank, cat("axis ", axis, " does not exist in a tensor of rank ", rank));
  if (axis < 0) axis += rank;
  c.out(
      c.e.reshape(c.in(0), {elements(Shape(s.begin(), s.begin() + axis)), elements(Shape(s.begin() + axis, s.end()))}));
}

std::vector<int64_t> given_axes(const Conversion& c, int rank) {
  return c.axes(c.version >= 13 ? (c.has(1) ? c.known_ints(1, "axes") : std::vector<int64_t>{}) : c.ints("axes"), rank);
}

void squeeze(Conversion& c) {
  const Shape& s = c.shape(0);
  std::vector<int64_t> axes = given_axes(c, static_cast<int>(s.size()));
  bool all = c.version >= 13 ? !c.has(1) : !c.set("axes");
  Shape to;
  for (size_t d = 0; d < s.size(); ++d) {
    bool listed = std::binary_search(axes.begin(), axes.end(), static_cast<int64_t>(d));
    c.require(!listed || s[d] == 1, cat("dimension ", d, " of ", to_string(s), " is not 1"));
    if (!(all ? s[d] == 1 : listed)) to.push_back(s[d]);
  }
  c.out(c.e.reshape(c.in(0), to));
}

void unsqueeze(Conversion& c) {
  Shape s = c.shape(0);
  size_t added = c.version >= 13 ? c.known_ints(1, "axes").size() : c.ints("axes").size();
  for (int64_t a : given_axes(c, static_cast<int>(s.size() + added))) s.insert(s.begin() + a, 1);
  c.out(c.e.reshape(c.in(0), s));
}

void transpose(Conversion& c) {
  int rank = c.rank(0);
  std::vector<int64_t> p;
  for (int d = rank; d-- > 0;) p.push_back(d);
  p = c.ints("perm", p);
  std::vector<int64_t> sorted = p;
  c.require(static_cast<int>(c.axes(sorted, rank).size()) == rank, cat("attribute perm: expected ", rank, " axes"));
  for (int64_t& d : p) d = c.axis(d, rank);
  c.out(c.e.transpose(c.in(0), p));
}

void expand(Conversion& c) {
  Shape to = c.known_ints(1, "shape");
  for (int64_t d : to) c.require(d >= 0, cat("dimension ", d, " is negative"));
  auto shape = broadcast_shapes(c.shape(0), to);
  c.require(shape.has_value(), cat("cannot expand ", to_string(c.shape(0)), " to ", to_string(to)));
  c.out(c.e.broadcast_to(c.in(0), checked(c, *shape)));
}

void tile(Conversion& c) {
  Emitter& e = c.e;
  Shape s = c.shape(0);
  std::vector<int64_t> repeats = c.known_ints(1, "repeats");
  c.require(repeats.size() == s.size(), cat("expected ", s.size(), " repeats, found ", repeats.size()));
  Shape from, wide, to;
  for (size_t d = 0; d < s.size(); ++d) {
    c.require(repeats[d] >= 0, "a repeat is negative");
    if (repeats[d] != 1) from.push_back(1), wide.push_back(repeats[d]);
    from.push_back(s[d]), wide.push_back(s[d]);
    int64_t n;
    c.require(!__builtin_mul_overflow(repeats[d], s[d], &n), "the result is too large");
    to.push_back(n);
  }
  checked(c, to);
  c.out(e.reshape(e.broadcast_to(e.reshape(c.in(0), from), wide), to));
}

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

void depth_to_space(Conversion& c) {
  Emitter& e = c.e;
  Shape s = c.shape(0);
  int64_t b = c.i("blocksize");
  c.require(s.size() == 4 && b > 0 && b < 1 << 15 && s[1] % (b * b) == 0,
            "expected [n, c, h, w] with c a multiple of blocksize^2");
  std::string mode = c.s("mode", "DCR");
  int64_t depth = s[1] / (b * b);
  ValueId x = mode == "CRD" ? e.transpose(e.reshape(c.in(0), {s[0], depth, b, b, s[2], s[3]}), {0, 1, 4, 2, 5, 3})
                            : e.transpose(e.reshape(c.in(0), {s[0], b, b, depth, s[2], s[3]}), {0, 3, 4, 1, 5, 2});
  c.out(e.reshape(x, {s[0], depth, s[2] * b, s[3] * b}));
}

void space_to_depth(Conversion& c) {
  Emitter& e = c.e;
  Shape s = c.shape(0);
  int64_t b = c.i("blocksize");
  c.require(s.size() == 4 && b > 0 && s[2] % b == 0 && s[3] % b == 0,
            "expected [n, c, h, w] with h and w multiples of blocksize");
  std::string mode = c.s("mode", "DCR");
  c.require(mode == "DCR" || mode == "CRD", "attribute mode: expected DCR or CRD");
  ValueId x = e.reshape(c.in(0), {s[0], s[1], s[2] / b, b, s[3] / b, b});
  x = e.transpose(x, mode == "CRD" ? std::vector<int64_t>{0, 1, 3, 5, 2, 4} : std::vector<int64_t>{0, 3, 5, 1, 2, 4});
  c.out(e.reshape(x, {s[0], s[1] * b * b, s[2] / b, s[3] / b}));
}

void eye_like(Conversion& c) {
  Emitter& e = c.e;
  Shape s = c.shape(0);
  c.require(s.size() == 2, "expected a matrix");
  DType t = c.set("dtype") ? c.element(c.i("dtype")) : c.dtype(0);
  ValueId rows = e.add(e.reshape(e.iota(s[0]), {s[0], 1}), e.ints(DType::kI64, {}, {c.i("k", 0)}));
  c.out(e.cast(e.eq(rows, e.iota(s[1])), t));
}

void trilu(Conversion& c) {
  Emitter& e = c.e;
  Shape s = c.shape(0);
  c.require(s.size() >= 2, "expected a matrix");
  int64_t k = c.has(1) ? c.known_int(1, "k") : 0, rows = s[s.size() - 2], columns = s.back();
  k = std::clamp(k, -rows - 1, columns + 1);
  ValueId edge = e.add(e.reshape(e.iota(rows), {rows, 1}), e.ints(DType::kI64, {}, {k})), column = e.iota(columns);
  ValueId kept = c.i("upper", 1) != 0 ? e.le(edge, column) : e.le(column, edge);
  c.out(e.select(kept, c.in(0), e.like(c.in(0), 0)));
}

constexpr ConvertEntry kTable[] = {
    {"Constant", 1, constant},
    {"Shape", 1, shape_of},
    {"Size", 1, size_of},
    {"ConstantOfShape", 9, constant_of_shape},
    {"Range", 11, range},
    {"Reshape", 5, reshape},
    {"Flatten", 1, flatten},
    {"Squeeze", 1, squeeze},
    {"Unsqueeze", 1, unsqueeze},
    {"Transpose", 1, transpose},
    {"Expand", 8, expand},
    {"Tile", 6, tile},
    {"Concat", 4, concat},
    {"Split", 2, split},
    {"Slice", 1, slice},
    {"Pad", 2, pad},
    {"DepthToSpace", 1, depth_to_space},
    {"SpaceToDepth", 1, space_to_depth},
    {"EyeLike", 9, eye_like},
    {"Trilu", 14, trilu},
};

}  // namespace

std::span<const ConvertEntry> shape_table() { return kTable; }

}  // namespace partita
