// Gathers, scatters, one-hot and other operators that index.
#include "ir/ops/indexing.h"
#include "base/cat.h"
#include "base/quote.h"
#include "frontend/import/convert_table.h"

namespace partita {
namespace {

ValueId indices(const Conversion& c, int k) {
  DType t = c.dtype(k);
  c.require(is_integer(t), cat("input ", k, ": expected integers, found ", dtype_name(t)));
  return t == DType::kI32 || t == DType::kI64 ? c.in(k) : c.e.cast(c.in(k), DType::kI64);
}

void gather(Conversion& c) {
  int axis = c.axis(c.i("axis", 0), c.rank(0));
  c.out(c.e.gather(c.in(0), indices(c, 1), axis));
}

void gather_elements(Conversion& c) {
  Emitter& e = c.e;
  int axis = c.axis(c.i("axis", 0), c.rank(0));
  ValueId x = c.in(0), index = indices(c, 1);
  c.require(e.rank(index) == e.rank(x), "data and indices differ in rank");
  for (int d = 0; d < e.rank(x); ++d) {
    if (d == axis) continue;
    c.require(e.shape(index)[d] <= e.shape(x)[d], "indices are larger than data");
    x = e.slice(x, d, 0, e.shape(index)[d]);
  }
  c.out(e.emit("take_along", {x, index}, {{"dim", int64_t{axis}}}));
}

// Whether each tuple's `part` [batch…, many…, 1] is its place along dimension `dim` alone: 0, 1, … along it.
bool is_place(Emitter& e, ValueId part, int64_t dim) {
  if (!e.is_known(part)) return false;
  const Tensor places = to_tensor(e.known(part, "indices"));
  size_t k = 0;
  bool same = true;
  for_each_index(places.type.shape,
                 [&](const std::vector<int64_t>& index) { same = same && places.i[k++] == index[dim]; });
  return same;
}

// The parts of indices [batch…, many…, k] along their last dimension, where they were put together of such.
std::vector<ValueId> coordinates(Emitter& e, ValueId indices) {
  const Node* made = e.builder().graph().producer(indices);
  if (made == nullptr || made->op->name != "concat" || made->attrs.i("dim") != e.rank(indices) - 1) return {indices};
  return made->inputs;
}

// As x[arange(n), i] is exported: a coordinate that only says where its tuple stands makes a dimension of the batch,
// in which each row of x is read by its own indices alone.
void gather_nd(Conversion& c) {
  Emitter& e = c.e;
  const ValueId x = c.in(0);
  ValueId index = indices(c, 1);
  int64_t batch = c.i("batch_dims", 0);
  std::vector<ValueId> parts = coordinates(e, index);
  const int last = e.rank(index) - 1;
  while (parts.size() > 1 && batch >= 0 && batch < std::min(last, e.rank(x)) && e.shape(parts[0])[last] == 1 &&
         e.shape(x)[batch] == e.shape(index)[batch] && is_place(e, parts[0], batch)) {
    parts.erase(parts.begin());
    ++batch;
    index = e.concat(parts, last);
  }
  c.out(e.emit("gather_nd", {x, index}, {{"batch_dims", batch}}));
}

std::string scatter_mode(const Conversion& c) {
  std::string mode = c.s("reduction", "none");
  c.require(mode == "none" || mode == "add" || mode == "mul" || mode == "max" || mode == "min",
            cat("attribute reduction: ", quote(mode), " is not known"));
  return mode;
}

void scatter_elements(Conversion& c) {
  int64_t axis = c.axis(c.i("axis", 0), c.rank(0));
  c.out(c.e.emit("scatter_elements", {c.in(0), indices(c, 1), c.in(2)}, {{"dim", axis}, {"mode", scatter_mode(c)}}));
}

void scatter_nd(Conversion& c) {
  c.out(c.e.emit("scatter_nd", {c.in(0), indices(c, 1), c.in(2)}, {{"mode", scatter_mode(c)}}));
}

// Indices -depth … -1 count from the end; anything further out gives no "on" value.
void one_hot(Conversion& c) {
  Emitter& e = c.e;
  double wanted = c.known_float(1, "depth");
  c.require(wanted >= 1 && wanted < 1e12, "the depth must be positive");
  int64_t depth = static_cast<int64_t>(wanted);
  int axis = c.axis(c.i("axis", -1), c.rank(0) + 1);
  ValueId index = e.cast(c.in(0), DType::kI64);
  index = e.select(e.lt(index, e.like(index, 0)), e.shift(index, static_cast<double>(depth)), index);
  Shape column = e.shape(index), line(column.size() + 1, 1);
  column.insert(column.begin() + axis, 1);
  line[axis] = depth;
  ValueId hot = e.eq(e.reshape(index, column), e.reshape(e.iota(depth), line));
  c.require(c.shape(2) == Shape{2}, "values: expected [off, on]");
  ValueId off = e.reshape(e.slice(c.in(2), 0, 0, 1), {}), on = e.reshape(e.slice(c.in(2), 0, 1, 2), {});
  c.services.never_train(c.in(2));
  c.out(e.select(hot, on, off));
}

void compress(Conversion& c) {
  Emitter& e = c.e;
  if (!e.is_known(c.in(1))) c.unsupported(std::string(advice_for("Compress")));
  std::vector<int64_t> condition = c.known_ints(1, "condition"), kept;
  for (size_t k = 0; k < condition.size(); ++k) {
    if (condition[k]) kept.push_back(static_cast<int64_t>(k));
  }
  ValueId x = c.in(0);
  int axis = 0;
  if (c.set("axis"))
    axis = c.axis(c.i("axis"), e.rank(x));
  else
    x = e.reshape(x, {elements(e.shape(x))});
  c.require(kept.empty() || kept.back() < e.shape(x)[axis], "the condition is longer than the axis");
  c.out(e.gather(x, e.ints(kept), axis));
}

void non_zero(Conversion& c) {
  Emitter& e = c.e;
  if (!e.is_known(c.in(0))) c.unsupported(cat("the result's size depends on data: ", advice_for("NonZero")));
  Tensor t = to_tensor(c.known(0, "X"));
  int64_t n = elements(t.type.shape);
  std::vector<int64_t> found;
  for (int64_t k = 0; k < n; ++k) {
    if (is_float(t.type.dtype) ? t.f[k] != 0 : t.i[k] != 0) found.push_back(k);
  }
  auto strides = row_major_strides(t.type.shape);
  std::vector<int64_t> out;
  for (size_t d = 0; d < t.type.shape.size(); ++d) {
    for (int64_t k : found) out.push_back(k / strides[d] % t.type.shape[d]);
  }
  c.out(e.ints(DType::kI64, {static_cast<int64_t>(t.type.shape.size()), static_cast<int64_t>(found.size())}, out));
}

void reverse_sequence(Conversion& c) {
  Emitter& e = c.e;
  Shape s = c.shape(0);
  int time = c.axis(c.i("time_axis", 0), c.rank(0)), batch = c.axis(c.i("batch_axis", 1), c.rank(0));
  c.require(time != batch, "time and batch axis are the same");
  Shape line(s.size(), 1), column(s.size(), 1);
  line[time] = s[time], column[batch] = s[batch];
  ValueId at = e.reshape(e.iota(s[time]), line), lengths = e.reshape(e.cast(c.in(1), DType::kI64), column);
  ValueId back = e.sub(e.shift(lengths, -1), at);
  ValueId index = e.broadcast_to(e.select(e.lt(at, lengths), back, at), s);
  c.out(e.emit("take_along", {c.in(0), index}, {{"dim", int64_t{time}}}));
}

constexpr ConvertEntry kTable[] = {
    {"Gather", 1, gather},
    {"GatherElements", 11, gather_elements},
    {"GatherND", 11, gather_nd},
    {"Scatter", 9, scatter_elements},
    {"ScatterElements", 11, scatter_elements},
    {"ScatterND", 11, scatter_nd},
    {"OneHot", 9, one_hot},
    {"Compress", 9, compress},
    {"NonZero", 9, non_zero},
    {"ReverseSequence", 10, reverse_sequence},
};

}  // namespace

std::span<const ConvertEntry> indexing_table() { return kTable; }

}  // namespace partita
