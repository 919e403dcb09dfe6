#include "passes/training/learning_rate_graph.h"

#include <algorithm>
#include <limits>
#include <numbers>

namespace partita {
namespace {

// Fraction of [from, to] that `t` has passed, held to [0, 1].
ValueId progress(Builder& b, ValueId t, double from, double to) {
  ValueId p = b.div(b.add_scalar(t, -from), b.scalar(DType::kF64, to - from));
  return b.emit("min", {b.emit("max", {p, b.scalar(DType::kF64, 0)}), b.scalar(DType::kF64, 1)});
}

// From `from` to `to` along half a cosine, or a straight line.
ValueId annealed(Builder& b, bool cosine, double from, double to, ValueId done) {
  if (!cosine) return b.add_scalar(b.scale(done, to - from), from);
  ValueId c = b.emit("cos", {b.scale(done, std::numbers::pi)});
  return b.add_scalar(b.scale(b.add_scalar(c, 1), (from - to) / 2), to);
}

ValueId one_cycle(Builder& b, const ScheduleRecipe& s, double lr, ValueId t) {
  ValueId rate = kNoValue;
  double start = 0;
  for (const OneCyclePhase& phase : one_cycle_phases(s, lr)) {
    ValueId now =
        annealed(b, s.anneal_strategy == AnnealStrategy::kCos, phase.from, phase.to, progress(b, t, start, phase.end));
    rate = rate == kNoValue ? now : b.select(b.emit("lt", {b.scalar(DType::kF64, start), t}), now, rate);
    start = phase.end;
  }
  return rate;
}

// How often the rate has been lowered, f64.
ValueId falls(Builder& b, const ScheduleRecipe& s, ValueId t) {
  if (s.step_size) {
    ValueId since = b.add_scalar(t, -static_cast<double>(s.warmup));
    return b.emit("floor", {b.div(since, b.scalar(DType::kF64, static_cast<double>(*s.step_size)))});
  }
  ValueId count = b.scalar(DType::kF64, 0);
  for (int64_t m : s.milestones)
    count = b.add(count, b.cast(b.emit("le", {b.scalar(DType::kF64, static_cast<double>(m)), t}), DType::kF64));
  return count;
}

// The share of the line that `t` is on; of the others 0 is added.
ValueId piecewise(Builder& b, const std::vector<ScheduleRecipe::Point>& points, ValueId t) {
  std::vector<double> from, to, share, slope;
  for (size_t k = 0; k < points.size(); ++k) {
    const bool last = k + 1 == points.size();
    from.push_back(static_cast<double>(points[k].step)), share.push_back(points[k].share);
    to.push_back(last ? std::numeric_limits<double>::infinity() : static_cast<double>(points[k + 1].step));
    slope.push_back(last ? 0 : (points[k + 1].share - share[k]) / (to[k] - from[k]));
  }
  auto each = [&](const std::vector<double>& values) { return b.constant(doubles_literal(values)); };
  ValueId begin = each(from);
  ValueId on = b.add(each(share), b.mul(b.sub(t, begin), each(slope)));
  ValueId none = b.scalar(DType::kF64, 0);
  on = b.select(b.emit("le", {begin, t}), b.select(b.emit("lt", {t, each(to)}), on, none), none);
  return b.reduce_sum(on, {0}, false);
}

// The rate after the warm-up; f64 `t`: steps taken so far.
ValueId rate_after_warmup(Builder& b, const ScheduleRecipe& s, double lr, ValueId t) {
  const double warmup = static_cast<double>(s.warmup), total = static_cast<double>(s.total), span = lr - s.min_lr;
  auto done = [&](double from) { return progress(b, t, std::min(from, total - 1), total); };
  switch (s.kind) {
    case ScheduleKind::kConstant:
      return b.scalar(DType::kF64, lr);
    case ScheduleKind::kLinear:
    case ScheduleKind::kCosine:
      return annealed(b, s.kind == ScheduleKind::kCosine, lr, s.min_lr, done(warmup));
    case ScheduleKind::kWsd:
      return annealed(b, false, lr, s.min_lr, done(total - static_cast<double>(s.decay)));
    case ScheduleKind::kOneCycle:
      return one_cycle(b, s, lr, t);
    case ScheduleKind::kPolynomial: {
      ValueId left = b.sub(b.scalar(DType::kF64, 1), done(warmup));
      return b.add_scalar(b.scale(b.emit("pow", {left, b.scalar(DType::kF64, s.power)}), span), s.min_lr);
    }
    case ScheduleKind::kInverseSqrt: {
      const double timescale = inverse_sqrt_timescale(s);
      ValueId since = b.add_scalar(t, timescale - warmup);
      ValueId divisor = b.emit("max", {since, b.scalar(DType::kF64, timescale)});  // positive in the warm-up, too
      return b.scale(b.emit("sqrt", {b.div(b.scalar(DType::kF64, timescale), divisor)}), lr);
    }
    case ScheduleKind::kStep:
      return b.scale(b.emit("pow", {b.scalar(DType::kF64, s.gamma), falls(b, s, t)}), lr);
    case ScheduleKind::kPiecewise:
      return b.scale(piecewise(b, s.points, t), lr);
  }
  return kNoValue;
}

}  // namespace

ValueId emit_learning_rate(Builder& b, const ScheduleRecipe& s, double lr, ValueId step) {
  ValueId t = b.cast(step, DType::kF64), rate = rate_after_warmup(b, s, lr, t);
  if (s.warmup > 0) {
    const auto [start, rise] = warmup_line(s);
    ValueId warm = b.add_scalar(b.scale(t, lr * rise), lr * start);
    rate = b.select(b.emit("lt", {step, b.scalar(DType::kI64, static_cast<double>(s.warmup))}), warm, rate);
  }
  return b.emit("add", {rate, b.scalar(DType::kF64, 0)});  // a value of its own, also where the rate is constant
}

}  // namespace partita
