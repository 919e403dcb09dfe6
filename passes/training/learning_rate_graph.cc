#include "passes/training/learning_rate_graph.h"

#include <algorithm>
#include <numbers>

namespace partita {
namespace {

// Fraction of [from, to] that `t` has passed, held to [0, 1].
ValueId progress(Builder& b, ValueId t, int64_t from, int64_t to) {
  double length = static_cast<double>(std::max<int64_t>(1, to - from));
  ValueId p = b.scale(b.add_scalar(t, -static_cast<double>(from)), 1 / length);
  return b.emit("min", {b.emit("max", {p, b.scalar(DType::kF64, 0)}), b.scalar(DType::kF64, 1)});
}

}  // namespace

ValueId emit_learning_rate(Builder& b, const ScheduleRecipe& s, double lr, ValueId step) {
  ValueId t = b.cast(step, DType::kF64), rate = b.scalar(DType::kF64, lr);
  double span = lr - s.min_lr;
  if (s.kind == ScheduleKind::kLinear) {
    rate = b.add_scalar(b.scale(progress(b, t, s.warmup, s.total), -span), lr);
  } else if (s.kind == ScheduleKind::kCosine) {
    ValueId c = b.emit("cos", {b.scale(progress(b, t, s.warmup, s.total), std::numbers::pi)});
    rate = b.add_scalar(b.scale(b.add_scalar(c, 1), span / 2), s.min_lr);
  } else if (s.kind == ScheduleKind::kWsd) {
    rate = b.add_scalar(b.scale(progress(b, t, s.total - s.decay, s.total), -span), lr);
  }
  if (s.warmup > 0) {
    ValueId warm = b.scale(b.add_scalar(t, 1), lr / static_cast<double>(s.warmup));
    rate = b.select(b.emit("lt", {step, b.scalar(DType::kI64, static_cast<double>(s.warmup))}), warm, rate);
  }
  return b.emit("add", {rate, b.scalar(DType::kF64, 0)});  // a value of its own, also where the rate is constant
}

}  // namespace partita
