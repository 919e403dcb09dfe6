// The learning-rate schedule as a scalar expression of the step, in f64: the runtime needs to know nothing of
// schedules.
#pragma once

#include "ir/graph/builder.h"
#include "ir/recipe/recipe.h"

namespace partita {

// `step`: i64 scalar, steps taken so far. The value of learning_rate(schedule, lr, step), f64 scalar.
ValueId emit_learning_rate(Builder& b, const ScheduleRecipe& schedule, double lr, ValueId step);

}  // namespace partita
