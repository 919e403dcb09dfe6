#include "ir/recipe/recipe.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace partita {

RecomputeMode Recipe::recompute_of(int32_t block) const {
  if (pin.recompute_blocks.empty()) return pin.recompute.value_or(recompute);
  const size_t b = static_cast<size_t>(block);
  return b < pin.recompute_blocks.size() ? pin.recompute_blocks[b] : RecomputeMode::kNone;
}

std::optional<int64_t> PinRecipe::axis(const std::string& name) const {
  auto found = axes.find(name);
  if (found == axes.end()) return std::nullopt;
  return found->second;
}

const ParameterGroup* OptimizerRecipe::group_of(const std::string& name) const {
  const auto at =
      std::find_if(groups.begin(), groups.end(), [&](const ParameterGroup& g) { return matches_any(g.match, name); });
  return at == groups.end() ? nullptr : &*at;
}

OptimizerRule OptimizerRecipe::rule_of(const std::string& name, int rank) const {
  const ParameterGroup* group = group_of(name);
  const OptimizerRule& rule = group == nullptr ? static_cast<const OptimizerRule&>(*this) : *group;
  if (rule.kind != OptimizerKind::kMuon || (rank == 2 && !matches_any(rule.adamw.match, name))) return rule;
  OptimizerRule rest = default_optimizer(OptimizerKind::kAdamW);
  rest.lr = rule.adamw.lr, rest.betas = rule.adamw.betas, rest.eps = rule.adamw.eps;
  rest.weight_decay = rule.adamw.weight_decay;
  return rest;
}

OptimizerRecipe default_optimizer(OptimizerKind kind) {
  OptimizerRecipe o;
  o.kind = kind;
  switch (kind) {
    case OptimizerKind::kSgd:
    case OptimizerKind::kAdam:
      break;
    case OptimizerKind::kMomentum:
      o.momentum = 0.9;
      break;
    case OptimizerKind::kAdagrad:
      o.lr = 1e-2;
      o.eps = 1e-10;
      break;
    case OptimizerKind::kAdamW:
    case OptimizerKind::kAdamW8bit:
      o.weight_decay = 1e-2;
      break;
    case OptimizerKind::kLamb:
      o.eps = 1e-6;
      o.weight_decay = 1e-2;
      break;
    case OptimizerKind::kLion:
      o.lr = 1e-4;
      o.betas = {0.9, 0.99};
      break;
    case OptimizerKind::kRmsprop:
      o.lr = 1e-2;
      break;
    case OptimizerKind::kAdafactor:
      o.lr = 1e-2;
      o.eps = std::numeric_limits<float>::epsilon();
      break;
    case OptimizerKind::kMuon:
      o.momentum = 0.95;
      o.nesterov = true;
      o.eps = 1e-7;
      o.weight_decay = 0.1;
      break;
  }
  return o;
}

ScheduleRecipe scaled_schedule(const ScheduleRecipe& schedule, double lr, double base) {
  ScheduleRecipe scaled = schedule;
  scaled.min_lr = base == 0 ? 0 : schedule.min_lr * (lr / base);
  return scaled;
}

std::vector<OneCyclePhase> one_cycle_phases(const ScheduleRecipe& s, double lr) {
  const double total = static_cast<double>(s.total), rise = s.pct_start * total;
  const double initial = lr / s.div_factor, last = initial / s.final_div_factor;
  if (s.three_phase) return {{rise - 1, initial, lr}, {2 * rise - 2, lr, initial}, {total - 1, initial, last}};
  return {{rise - 1, initial, lr}, {total - 1, lr, last}};
}

double inverse_sqrt_timescale(const ScheduleRecipe& schedule) {
  return static_cast<double>(schedule.timescale.value_or(schedule.warmup > 0 ? schedule.warmup : 10000));
}

std::pair<double, double> warmup_line(const ScheduleRecipe& schedule) {
  const double step = 1 / static_cast<double>(schedule.warmup);
  return schedule.warmup_start ? std::pair(*schedule.warmup_start, (1 - *schedule.warmup_start) * step)
                               : std::pair(step, step);
}

namespace {

double half_cosine(double done) { return 0.5 * (1 + std::cos(std::numbers::pi * done)); }

double one_cycle(const ScheduleRecipe& schedule, double lr, double step) {
  double start = 0, rate = lr;
  for (const OneCyclePhase& phase : one_cycle_phases(schedule, lr)) {
    const double done = std::min((step - start) / (phase.end - start), 1.0);
    const bool cosine = schedule.anneal_strategy == AnnealStrategy::kCos;
    rate = phase.to + (phase.from - phase.to) * (cosine ? half_cosine(done) : 1 - done);
    if (step <= phase.end) break;
    start = phase.end;
  }
  return rate;
}

// How often a step has lowered the rate.
int64_t falls(const ScheduleRecipe& schedule, int64_t step) {
  if (schedule.step_size) return (step - schedule.warmup) / *schedule.step_size;
  return std::count_if(schedule.milestones.begin(), schedule.milestones.end(), [&](int64_t m) { return m <= step; });
}

double piecewise(const std::vector<ScheduleRecipe::Point>& points, int64_t step) {
  const auto next = std::ranges::upper_bound(points, step, {}, &ScheduleRecipe::Point::step);
  if (next == points.end()) return points.back().share;
  const ScheduleRecipe::Point& last = *std::prev(next);
  const double slope = (next->share - last.share) / static_cast<double>(next->step - last.step);
  return last.share + slope * static_cast<double>(step - last.step);
}

}  // namespace

double learning_rate(const ScheduleRecipe& schedule, double lr, int64_t step) {
  const double t = static_cast<double>(step), warmup = static_cast<double>(schedule.warmup);
  if (step < schedule.warmup) {
    const auto [start, rise] = warmup_line(schedule);
    return lr * (start + rise * t);
  }
  if (schedule.kind == ScheduleKind::kConstant) return lr;
  if (schedule.kind == ScheduleKind::kOneCycle) return one_cycle(schedule, lr, t);
  if (schedule.kind == ScheduleKind::kPiecewise) return lr * piecewise(schedule.points, step);
  if (schedule.kind == ScheduleKind::kStep) return lr * std::pow(schedule.gamma, falls(schedule, step));
  if (schedule.kind == ScheduleKind::kInverseSqrt) {
    const double timescale = inverse_sqrt_timescale(schedule);
    return lr * std::sqrt(timescale / (t - warmup + timescale));
  }
  int64_t start = schedule.kind == ScheduleKind::kWsd ? schedule.total - schedule.decay : schedule.warmup;
  if (step >= schedule.total) return schedule.min_lr;
  if (step <= start) return lr;
  double done = static_cast<double>(step - start) / static_cast<double>(schedule.total - start);
  double left = schedule.kind == ScheduleKind::kCosine       ? half_cosine(done)
                : schedule.kind == ScheduleKind::kPolynomial ? std::pow(1 - done, schedule.power)
                                                             : 1 - done;
  return schedule.min_lr + (lr - schedule.min_lr) * left;
}

}  // namespace partita
