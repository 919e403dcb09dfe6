// The schedule in the graph against the same schedule as a function, step by step.
#include "passes/training/learning_rate_graph.h"

#include "gtest/gtest.h"
#include "ir/graph/evaluate.h"

namespace partita {
namespace {

TEST(LearningRateGraph_EverySchedule, IsTheFunction) {
  using Kind = ScheduleKind;
  const ScheduleRecipe kSchedules[] = {
      {},
      {.warmup = 3},
      {.warmup = 3, .warmup_start = 0},
      {.kind = Kind::kCosine, .warmup = 4, .total = 9, .warmup_start = 0.3},
      {.kind = Kind::kLinear, .warmup = 2, .total = 9, .min_lr = 0.01},
      {.kind = Kind::kCosine, .warmup = 2, .total = 9, .min_lr = 0.01},
      {.kind = Kind::kCosine, .warmup = 5, .total = 5},
      {.kind = Kind::kWsd, .warmup = 2, .total = 9, .decay = 3, .min_lr = 0.01},
      {.kind = Kind::kPolynomial, .warmup = 2, .total = 9, .min_lr = 0.01, .power = 1.7},
      {.kind = Kind::kInverseSqrt, .warmup = 3},
      {.kind = Kind::kInverseSqrt, .warmup = 3, .timescale = 2},
      {.kind = Kind::kInverseSqrt},
      {.kind = Kind::kStep, .warmup = 2, .step_size = 3, .gamma = 0.3},
      {.kind = Kind::kStep, .warmup = 2, .milestones = {2, 4, 4, 9}, .gamma = 0.3},
      {.kind = Kind::kPiecewise, .points = {{0, 0.5}, {3, 1}, {4, 1}, {5, 0}, {7, 2}, {11, 0.25}}},
      {.kind = Kind::kPiecewise, .points = {{0, 0.75}}},
      {.kind = Kind::kOneCycle, .total = 10},
      {.kind = Kind::kOneCycle, .total = 10, .pct_start = 0.35, .three_phase = true},
      {.kind = Kind::kOneCycle, .total = 10, .pct_start = 0.9, .anneal_strategy = AnnealStrategy::kLinear},
  };
  for (const ScheduleRecipe& schedule : kSchedules) {
    Builder b;
    b.context().segment = Segment::kUpdate;
    ValueId step = b.input("step", {DType::kI64, {}});
    b.output("lr", emit_learning_rate(b, schedule, 0.1, step));
    const Graph graph = std::move(b).finish();
    for (int64_t t = 0; t < 14; ++t) {
      Tensor now = Tensor::zeros({DType::kI64, {}});
      now.i[0] = t;
      EXPECT_NEAR(evaluate_graph(graph, {{step, now}})[0].f[0], learning_rate(schedule, 0.1, t), 1e-15)
          << enum_name(schedule.kind) << " after warm-up " << schedule.warmup << ", step " << t;
    }
  }
}

}  // namespace
}  // namespace partita
