#include "tests/codegen/support/random_graph.h"

#include <random>

#include "base/cat.h"
#include "ir/graph/builder.h"

namespace partita {
namespace {

class Maker {
 public:
  explicit Maker(uint64_t seed) : engine_(seed) {}

  Graph make(int operations) {
    rows_ = pick({1, 2, 7, 16, 33}), middle_ = pick({1, 3, 8}), columns_ = pick({1, 5, 16, 40, 70});
    for (int k = 0; k < 3; ++k) pool_.push_back(b_.input(cat("x", k), {DType::kF32, {rows_, middle_, columns_}}));
    pool_.push_back(b_.input("row", {DType::kF32, {rows_, 1, 1}}));
    std::vector<ValueId> states;
    for (Shape s : {Shape{columns_}, Shape{columns_}, Shape{middle_, columns_}}) {
      states.push_back(b_.state({.name = cat("w", states.size())}, {DType::kF32, s}));
      pool_.push_back(states.back());
    }
    for (Segment s : {Segment::kForward, Segment::kBackward, Segment::kUpdate}) {
      b_.context().segment = s;
      for (int k = 0; k < operations / 3; ++k) pool_.push_back(bounded(operation()));
    }
    for (size_t k = 0; k < states.size(); ++k) {
      if (below(3) > 0) b_.set_next(cat("w", k), summed(any(), b_.shape(states[k])));
    }
    for (int k = 0; k < 4; ++k) b_.output(cat("y", k), pool_[pool_.size() - 1 - below(pool_.size() / 2)]);
    return std::move(b_).finish();
  }

  // Over the rows of one matrix alone, so that all of it is one nest of many passes; half of it is wanted outside.
  Graph make_rows(int operations) {
    rows_ = pick({1, 6, 19}), columns_ = pick({1, 3, 17, 64, 130});
    for (int k = 0; k < 3; ++k) pool_.push_back(b_.input(cat("x", k), {DType::kF32, {rows_, columns_}}));
    for (int k = 0; k < operations; ++k) {
      pool_.push_back(row_operation());
      if (below(2)) b_.output(cat("y", k), pool_.back());
    }
    b_.output("y", pool_.back());
    return std::move(b_).finish();
  }

 private:
  // No differences: what cancels is rounding alone.
  ValueId row_operation() {
    ValueId x = any(), y = any();
    switch (below(6)) {
      case 0:
        return b_.emit("exp", {b_.emit("neg", {bounded(x)})});
      case 1:
        return b_.emit("softmax", {b_.add(x, y)}, {{"dim", int64_t{1}}});
      case 2:
        return bounded(b_.add(x, b_.reduce_sum(b_.mul(x, y), {1}, true)));
      case 3:
        return bounded(b_.add(x, b_.reduce("reduce_max", y, {1}, true)));
      default:
        return bounded(b_.emit(below(2) ? "mul" : "add", {x, y}));
    }
  }

  size_t below(size_t n) { return engine_() % n; }
  int64_t pick(std::vector<int64_t> from) { return from[below(from.size())]; }
  // Recent values more often, so that chains grow.
  ValueId any() {
    return below(2) ? pool_[pool_.size() - 1 - below(std::min<size_t>(pool_.size(), 4))] : pool_[below(pool_.size())];
  }
  ValueId bounded(ValueId v) { return b_.emit("tanh", {v}); }

  // Of the shape asked for, by sums and broadcasts.
  ValueId summed(ValueId v, const Shape& shape) {
    auto both = broadcast_shapes(b_.shape(v), shape);
    if (!both) return b_.broadcast_to(b_.reduce_sum(v, all_dims(v), false), shape);
    return b_.sum_to(b_.broadcast_to(v, *both), shape);
  }
  std::vector<int64_t> all_dims(ValueId v) const {
    std::vector<int64_t> dims;
    for (int d = 0; d < b_.rank(v); ++d) dims.push_back(d);
    return dims;
  }

  ValueId operation() {
    ValueId x = any();
    int rank = b_.rank(x);
    switch (below(14)) {
      case 0:
        return b_.emit("exp", {b_.emit("neg", {x})});
      case 1:
        return b_.scale(x, 0.5);
      case 2:
      case 3:
      case 4: {
        ValueId y = any();
        if (!broadcast_shapes(b_.shape(x), b_.shape(y))) y = x;
        return b_.emit(below(2) ? "mul" : "sub", {x, y});
      }
      case 5: {
        if (rank == 0) return x;
        return b_.reduce(below(3) ? "reduce_sum" : "reduce_max", x,
                         {static_cast<int64_t>(below(static_cast<size_t>(rank)))}, true);
      }
      case 6: {
        if (rank == 0) return x;
        return b_.emit("softmax", {x}, {{"dim", static_cast<int64_t>(below(static_cast<size_t>(rank)))}});
      }
      case 7: {
        if (rank == 0) return x;
        Shape last{b_.shape(x).back()};
        return b_.emit_all("layer_norm", {x, b_.full(DType::kF32, last, 1.5), b_.full(DType::kF32, last, 0.5)},
                           {{"axis", int64_t{rank - 1}}, {"epsilon", 1e-2}})[0];
      }
      case 8: {
        if (rank != 3) return x;
        auto p = below(2) ? std::vector<int64_t>{1, 0, 2} : std::vector<int64_t>{0, 2, 1};
        return b_.transpose(b_.emit("sin", {b_.transpose(x, p)}), p);
      }
      case 9: {
        if (rank != 3) return x;
        Shape s = b_.shape(x);
        return b_.reshape(b_.emit("relu", {b_.reshape(x, {s[0] * s[1], s[2]})}), s);
      }
      case 10: {
        if (rank == 0 || b_.shape(x).back() < 4) return x;
        std::vector<int64_t> zeros(static_cast<size_t>(rank), 0), ones(static_cast<size_t>(rank), 1),
            limits = b_.shape(x), high = zeros;
        limits.back() -= 3;
        high.back() = 3;
        ValueId part = b_.emit("slice", {x}, {{"starts", zeros}, {"limits", limits}, {"strides", ones}});
        return b_.emit("pad", {part, b_.scalar(DType::kF32, 0.25)}, {{"low", zeros}, {"high", high}});
      }
      case 11: {
        if (rank == 0) return x;
        int64_t dim = static_cast<int64_t>(below(static_cast<size_t>(rank)));
        std::vector<int64_t> starts(static_cast<size_t>(rank), 0), ones(static_cast<size_t>(rank), 1),
            limits = b_.shape(x);
        ValueId c = b_.emit("concat", {x, b_.emit("neg", {x})}, {{"dim", dim}});
        starts[dim] = limits[dim] / 2;
        limits[dim] += limits[dim] / 2;
        return b_.emit("slice", {c}, {{"starts", starts}, {"limits", limits}, {"strides", ones}});
      }
      case 12: {
        if (rank != 3) return x;
        return b_.matmul(b_.matmul(x, x, false, true), x);
      }
      default: {
        ValueId y = any();
        if (b_.shape(x) != b_.shape(y)) return b_.emit("abs", {x});
        return b_.select(b_.emit("lt", {x, y}), b_.add(x, y), y);
      }
    }
  }

  std::mt19937_64 engine_;
  Builder b_;
  std::vector<ValueId> pool_;
  int64_t rows_ = 1, middle_ = 1, columns_ = 1;
};

}  // namespace

Graph random_graph(uint64_t seed, int operations) { return Maker(seed).make(operations); }
Graph random_rows(uint64_t seed, int operations) { return Maker(seed).make_rows(operations); }

}  // namespace partita
