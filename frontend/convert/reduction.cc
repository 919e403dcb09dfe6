// Reductions, scans, arg-reductions and TopK.
#include <cmath>
#include <numeric>

#include "base/cat.h"
#include "frontend/import/convert_table.h"

namespace partita {
namespace {

struct Reduction {
  ValueId x;
  std::vector<int64_t> dims;
  bool keep;
  bool nothing;  // no axes, and none were meant
};

// Axes are an attribute up to opset 17 (12 for ReduceSum), then an input.
Reduction reduction(Conversion& c) {
  Reduction r{c.in(0), {}, c.i("keepdims", 1) != 0, false};
  bool input = c.version >= 18 || (c.node.op == "ReduceSum" && c.version >= 13);
  std::vector<int64_t> axes = input ? (c.has(1) ? c.known_ints(1, "axes") : std::vector<int64_t>{}) : c.ints("axes");
  int rank = c.e.rank(r.x);
  if (axes.empty()) {
    r.nothing = input && c.i("noop_with_empty_axes", 0) != 0;
    if (!r.nothing) {
      axes.resize(static_cast<size_t>(rank));
      std::iota(axes.begin(), axes.end(), 0);
    }
  }
  r.dims = c.axes(std::move(axes), rank);
  return r;
}

ValueId finish(Conversion& c, const Reduction& r, std::string_view op, ValueId x) {
  Emitter& e = c.e;
  if (r.nothing || r.dims.empty()) return x;
  return e.reduce(op, x, r.dims, r.keep);
}

void reduce_sum(Conversion& c) {
  Reduction r = reduction(c);
  c.out(finish(c, r, "reduce_sum", r.x));
}

void reduce_mean(Conversion& c) {
  Reduction r = reduction(c);
  Emitter& e = c.e;
  if (r.nothing) return c.out(r.x);
  if (is_float(e.dtype(r.x))) return c.out(e.mean(r.x, r.dims, r.keep));
  int64_t n = 1;
  for (int64_t d : r.dims) n *= e.shape(r.x)[d];
  c.require(n > 0, "the mean of no elements is not defined");
  c.out(e.div(finish(c, r, "reduce_sum", r.x), e.like(r.x, static_cast<double>(n))));
}

template <bool kMaximum>
void reduce_extreme(Conversion& c) {
  Reduction r = reduction(c);
  Emitter& e = c.e;
  DType t = e.dtype(r.x);
  if (t == DType::kBool)
    return c.out(e.cast(finish(c, r, kMaximum ? "reduce_max" : "reduce_min", e.cast(r.x, DType::kU8)), t));
  c.out(finish(c, r, kMaximum ? "reduce_max" : "reduce_min", r.x));
}

void reduce_prod(Conversion& c) {
  Reduction r = reduction(c);
  c.out(finish(c, r, "reduce_prod", r.x));
}

void reduce_l1(Conversion& c) {
  Reduction r = reduction(c);
  c.out(finish(c, r, "reduce_sum", c.e.emit("abs", {r.x})));
}

ValueId square_root(Emitter& e, ValueId v) {
  DType t = e.dtype(v);
  return is_float(t) ? e.emit("sqrt", {v}) : e.cast(e.emit("sqrt", {e.cast(v, DType::kF64)}), t);
}

void reduce_l2(Conversion& c) {
  Reduction r = reduction(c);
  c.out(square_root(c.e, finish(c, r, "reduce_sum", c.e.mul(r.x, r.x))));
}

void reduce_sum_square(Conversion& c) {
  Reduction r = reduction(c);
  c.out(finish(c, r, "reduce_sum", c.e.mul(r.x, r.x)));
}

void reduce_log_sum(Conversion& c) {
  Reduction r = reduction(c);
  c.out(c.e.emit("log", {finish(c, r, "reduce_sum", r.x)}));
}

// log sum exp(x - m) + m with m the maximum, or 0 where that is infinite.
void reduce_log_sum_exp(Conversion& c) {
  Reduction r = reduction(c);
  Emitter& e = c.e;
  if (r.nothing || r.dims.empty()) return c.out(r.x);
  ValueId m = e.reduce("reduce_max", r.x, r.dims, true);
  m = e.select(e.emit("is_inf", {m}), e.like(m, 0), m);
  ValueId y = e.add(e.emit("log", {e.sum(e.exp(e.sub(r.x, m)), r.dims, true)}), m);
  if (!r.keep) {
    Shape s;
    for (int d = 0; d < e.rank(r.x); ++d) {
      if (std::find(r.dims.begin(), r.dims.end(), d) == r.dims.end()) s.push_back(e.shape(r.x)[d]);
    }
    y = e.reshape(y, s);
  }
  c.out(y);
}

template <bool kMaximum>
void arg_reduce(Conversion& c) {
  Emitter& e = c.e;
  int64_t axis = c.axis(c.i("axis", 0), c.rank(0));
  c.require(c.shape(0)[axis] > 0, "the axis has no elements");
  ValueId x = c.in(0);
  if (!kMaximum) {
    if (is_unsigned(e.dtype(x))) x = e.cast(x, DType::kI64);
    x = e.neg(x);
  }
  c.out(e.emit("argmax", {x},
               {{"dim", axis},
                {"keep", int64_t{c.i("keepdims", 1) != 0}},
                {"last", int64_t{c.i("select_last_index", 0) != 0}}}));
}

void cum_sum(Conversion& c) {
  int64_t axis = c.axis(c.known_int(1, "axis"), c.rank(0));
  c.out(c.e.emit(
      "cumsum", {c.in(0)},
      {{"dim", axis}, {"exclusive", int64_t{c.i("exclusive", 0) != 0}}, {"reverse", int64_t{c.i("reverse", 0) != 0}}}));
}

void top_k(Conversion& c) {
  int64_t k = c.version < 10 ? c.i("k") : c.known_int(1, "K");
  int64_t axis = c.axis(c.i("axis", -1), c.rank(0));
  c.require(k >= 0 && k <= c.shape(0)[axis], cat("K = ", k, " is not between 0 and the axis' size ", c.shape(0)[axis]));
  auto v = c.e.emit_all("topk", {c.in(0)}, {{"k", k}, {"dim", axis}, {"largest", int64_t{c.i("largest", 1) != 0}}});
  c.out(0, v[0]);
  c.out(1, v[1]);
}

constexpr ConvertEntry kTable[] = {
    {"ReduceSum", 1, reduce_sum},
    {"ReduceMean", 1, reduce_mean},
    {"ReduceMax", 1, reduce_extreme<true>},
    {"ReduceMin", 1, reduce_extreme<false>},
    {"ReduceProd", 1, reduce_prod},
    {"ReduceL1", 1, reduce_l1},
    {"ReduceL2", 1, reduce_l2},
    {"ReduceSumSquare", 1, reduce_sum_square},
    {"ReduceLogSum", 1, reduce_log_sum},
    {"ReduceLogSumExp", 1, reduce_log_sum_exp},
    {"ArgMax", 1, arg_reduce<true>},
    {"ArgMin", 1, arg_reduce<false>},
    {"CumSum", 11, cum_sum},
    {"TopK", 1, top_k},
};

}  // namespace

std::span<const ConvertEntry> reduction_table() { return kTable; }

}  // namespace partita
