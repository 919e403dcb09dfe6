#include "ir/recipe/recipe.h"

#include "gtest/gtest.h"

namespace partita {
namespace {

TEST(LearningRate_MatchesPyTorch, Table) {
  // `lr` of shared/models/*/expected.npz.
  const struct {
    const char* model;
    ScheduleRecipe schedule;
    double lr;
    std::vector<double> expected;
  } kCases[] = {
      {"bert", {ScheduleKind::kLinear, 2, 10, 0, 0.0}, 0.002, {0.001, 0.002, 0.002, 0.00175, 0.0015, 0.00125}},
      {"gpt2",
       {ScheduleKind::kCosine, 2, 8, 0, 0.0001},
       0.001,
       {0.0005, 0.001, 0.001, 0.0009397114317029975, 0.0007750000000000001, 0.00055, 0.0003250000000000001,
        0.00016028856829700258}},
      {"llama",
       {ScheduleKind::kCosine, 1, 10, 0, 0.0001},
       0.001,
       {0.001, 0.001, 0.0009728616793536588, 0.00089471999940354, 0.0007750000000000001, 0.0006281416799501188}},
      {"llama_opset23",
       {ScheduleKind::kLinear, 1, 10, 0, 0.0},
       0.001,
       {0.001, 0.001, 0.0008888888888888888, 0.0007777777777777778, 0.0006666666666666668, 0.0005555555555555556}},
      {"mixtral", {ScheduleKind::kConstant, 2, 0, 0, 0.0}, 0.001, {0.0005, 0.001, 0.001, 0.001, 0.001, 0.001}},
      {"mlp", {ScheduleKind::kConstant, 0, 0, 0, 0.0}, 0.05, {0.05, 0.05, 0.05}},
      {"resnet",
       {ScheduleKind::kCosine, 1, 10, 0, 0.0},
       0.005,
       {0.005, 0.005, 0.0048492315519647715, 0.004415111107797445, 0.00375}},
      {"vit",
       {ScheduleKind::kCosine, 2, 8, 0, 1e-5},
       0.001,
       {0.0005, 0.001, 0.001, 0.0009336825748732972, 0.0007525, 0.000505}},
  };
  for (const auto& c : kCases) {
    for (size_t step = 0; step < c.expected.size(); ++step) {
      EXPECT_NEAR(learning_rate(c.schedule, c.lr, static_cast<int64_t>(step)), c.expected[step], 1e-15)
          << c.model << " step " << step;
    }
  }
}

// What torch.optim.lr_scheduler gives (2.15), step by step.
TEST(LearningRate_TorchsSchedulers, Table) {
  using Kind = ScheduleKind;
  const struct {
    ScheduleRecipe schedule;
    std::vector<double> expected;
  } kCases[] = {
      {{.kind = Kind::kOneCycle, .total = 8},
       {0.0040000000000000036, 0.08192751048921922, 0.09719417773875232, 0.0811745653949763, 0.05559840141227016,
        0.028306099820869922, 0.0076641593834256404, 4e-07, 4e-07}},
      {{.kind = Kind::kOneCycle,
        .total = 8,
        .pct_start = 0.4,
        .div_factor = 5,
        .final_div_factor = 10,
        .anneal_strategy = AnnealStrategy::kLinear,
        .three_phase = true},
       {0.02, 0.056363636363636366, 0.09272727272727273, 0.07090909090909092, 0.03454545454545456, 0.015846153846153847,
        0.008923076923076924, 0.002, 0.002}},
      {{.kind = Kind::kPolynomial, .total = 6, .power = 2.5},
       {0.1, 0.0633938145260609, 0.03628873693012116, 0.017677669529663684, 0.006415002990995842, 0.0011340230290662852,
        0, 0}},
      {{.kind = Kind::kStep, .step_size = 2, .gamma = 0.5}, {0.1, 0.1, 0.05, 0.05, 0.025, 0.025}},
      {{.kind = Kind::kStep, .milestones = {2, 5, 5}, .gamma = 0.5}, {0.1, 0.1, 0.05, 0.05, 0.05, 0.0125, 0.0125}},
      // LambdaLR with numpy.interp of these points
      {{.kind = Kind::kPiecewise, .points = {{0, 0}, {2, 1}, {3, 0.5}, {5, 0.1}}},
       {0, 0.05, 0.1, 0.05, 0.03, 0.01, 0.01, 0.01}},
  };
  for (const auto& c : kCases) {
    for (size_t step = 0; step < c.expected.size(); ++step)
      EXPECT_NEAR(learning_rate(c.schedule, 0.1, static_cast<int64_t>(step)), c.expected[step], 1e-15)
          << enum_name(c.schedule.kind) << " step " << step;
  }
}

TEST(LearningRate_InverseSqrt, FallsWithTheRootOfTheStep) {
  const ScheduleRecipe warm = {.kind = ScheduleKind::kInverseSqrt, .warmup = 4};
  EXPECT_EQ(learning_rate(warm, 1, 1), 0.5);
  EXPECT_EQ(learning_rate(warm, 1, 4), 1);
  EXPECT_EQ(learning_rate(warm, 1, 16), 0.5);  // sqrt(4 / 16)
  EXPECT_EQ(learning_rate({.kind = ScheduleKind::kInverseSqrt, .timescale = 9}, 1, 27), 0.5);
  EXPECT_EQ(learning_rate({.kind = ScheduleKind::kInverseSqrt}, 1, 30000), 0.5);
}

TEST(LearningRate_WarmupStart, IsOfTheFirstStep) {
  const ScheduleRecipe from_zero = {.kind = ScheduleKind::kLinear, .warmup = 4, .total = 8, .warmup_start = 0};
  const ScheduleRecipe from_half = {.warmup = 4, .warmup_start = 0.5};
  for (int64_t step = 0; step < 4; ++step) {
    EXPECT_EQ(learning_rate(from_zero, 1, step), 0.25 * static_cast<double>(step));
    EXPECT_EQ(learning_rate(from_half, 1, step), 0.5 + 0.125 * static_cast<double>(step));
  }
  EXPECT_EQ(learning_rate(from_zero, 1, 4), 1);
  EXPECT_EQ(learning_rate(from_half, 1, 4), 1);
  EXPECT_EQ(learning_rate(from_zero, 1, 5), 0.75);
}

TEST(LearningRate_AtTheEdges, Table) {
  const ScheduleRecipe kWsd = {ScheduleKind::kWsd, 2, 10, 4, 0.1};
  const ScheduleRecipe kLinear = {ScheduleKind::kLinear, 2, 6, 0, 0.2};
  const struct {
    ScheduleRecipe schedule;
    int64_t step;
    double expected;
  } kCases[] = {
      {kWsd, 0, 0.5},
      {kWsd, 1, 1.0},
      {kWsd, 5, 1.0},
      {kWsd, 6, 1.0},
      {kWsd, 7, 0.775},
      {kWsd, 9, 0.325},
      {kWsd, 10, 0.1},
      {kWsd, INT64_MAX, 0.1},
      {kLinear, 2, 1.0},
      {kLinear, 4, 0.6},
      {kLinear, 6, 0.2},
      {kLinear, 7, 0.2},
      {{ScheduleKind::kCosine, 5, 5, 0, 0.3}, 5, 0.3},
      {{ScheduleKind::kWsd, 0, 5, 0, 0.3}, 4, 1.0},
      {{ScheduleKind::kConstant, 0, 3, 0, 0}, 100, 1.0},
  };
  for (const auto& c : kCases)
    EXPECT_NEAR(learning_rate(c.schedule, 1.0, c.step), c.expected, 1e-12)
        << enum_name(c.schedule.kind) << " " << c.step;
}

TEST(EnumNames_EachKind, InOrder) {
  EXPECT_EQ(enum_name(LossKind::kL1), "l1");
  EXPECT_EQ(enum_name(OptimizerKind::kLamb), "lamb");
  EXPECT_EQ(enum_name(ScheduleKind::kWsd), "wsd");
  EXPECT_EQ(enum_name(Precision::kFp16), "fp16");
  EXPECT_EQ(enum_name(RecomputeMode::kFull), "full");
  EXPECT_EQ(enum_name(InitKind::kXavier), "xavier");
  EXPECT_EQ(enum_name(DataKind::kSynthetic), "synthetic");
  EXPECT_EQ(enum_name(Compression::kPowerSgd), "powersgd");
  EXPECT_EQ(enum_name(OffloadMode::kAll), "all");
  EXPECT_EQ(enum_name(PipelineSchedule::kZeroBubble), "zero_bubble");
  EXPECT_EQ(parse_enum<PipelineSchedule>("zero_bubble"), PipelineSchedule::kZeroBubble);
  EXPECT_EQ(parse_enum<PipelineSchedule>("zero"), std::nullopt);
}

TEST(DefaultOptimizer_EachKind, IsPyTorchs) {
  EXPECT_EQ(default_optimizer(OptimizerKind::kSgd).momentum, 0);
  EXPECT_EQ(default_optimizer(OptimizerKind::kMomentum).momentum, 0.9);
  EXPECT_EQ(default_optimizer(OptimizerKind::kAdagrad).lr, 1e-2);
  EXPECT_EQ(default_optimizer(OptimizerKind::kAdagrad).eps, 1e-10);
  EXPECT_EQ(default_optimizer(OptimizerKind::kAdam).weight_decay, 0);
  EXPECT_EQ(default_optimizer(OptimizerKind::kAdamW).weight_decay, 1e-2);
  EXPECT_EQ(default_optimizer(OptimizerKind::kLamb).eps, 1e-6);
  EXPECT_EQ(default_optimizer(OptimizerKind::kLion).betas[1], 0.99);
  EXPECT_EQ(default_optimizer(OptimizerKind::kRmsprop).lr, 1e-2);
  EXPECT_EQ(default_optimizer(OptimizerKind::kAdafactor).eps, 0x1p-23);
  EXPECT_EQ(default_optimizer(OptimizerKind::kMuon).momentum, 0.95);
  EXPECT_EQ(default_optimizer(OptimizerKind::kAdamW8bit).weight_decay, 1e-2);
}

}  // namespace
}  // namespace partita
