// Constants, shapes of values, and operators that only move elements.
#include <algorithm>
#include <cmath>

#include "base/cat.h"
#include "frontend/import/convert_table.h"

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
    {"DepthToSpace", 1, depth_to_space},
    {"SpaceToDepth", 1, space_to_depth},
    {"EyeLike", 9, eye_like},
    {"Trilu", 14, trilu},
};

}  // namespace

std::span<const ConvertEntry> shape_table() { return kTable; }

}  // namespace partita
