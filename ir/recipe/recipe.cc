#include "ir/recipe/recipe.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace partita {

std::optional<int64_t> PinRecipe::axis(const std::string& name) const {
  auto found = axes.find(name);
  if (found == axes.end()) return std::nullopt;
  return found->second;
}

OptimizerRecipe default_optimizer(OptimizerKind kind) {
  switch (kind) {
    case OptimizerKind::kSgd:
      return {.kind = kind};
    case OptimizerKind::kMomentum:
      return {.kind = kind, .momentum = 0.9};
    case OptimizerKind::kAdagrad:
      return {.kind = kind, .lr = 1e-2, .eps = 1e-10};
    case OptimizerKind::kAdam:
      return {.kind = kind};
    case OptimizerKind::kAdamW:
      return {.kind = kind, .weight_decay = 1e-2};
    case OptimizerKind::kLamb:
      return {.kind = kind, .eps = 1e-6, .weight_decay = 1e-2};
  }
  return {.kind = kind};
}

double learning_rate(const ScheduleRecipe& schedule, double lr, int64_t step) {
  if (step < schedule.warmup) return lr * (static_cast<double>(step) + 1) / static_cast<double>(schedule.warmup);
  if (schedule.kind == ScheduleKind::kConstant) return lr;
  int64_t start = schedule.kind == ScheduleKind::kWsd ? schedule.total - schedule.decay : schedule.warmup;
  if (step >= schedule.total) return schedule.min_lr;
  if (step <= start) return lr;
  double done = static_cast<double>(step - start) / static_cast<double>(schedule.total - start);
  double left = schedule.kind == ScheduleKind::kCosine ? 0.5 * (1 + std::cos(std::numbers::pi * done)) : 1 - done;
  return schedule.min_lr + (lr - schedule.min_lr) * left;
}

}  // namespace partita
