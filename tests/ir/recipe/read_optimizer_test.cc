// Keys of muon and of schedules, and what is refused of them.
#include "ir/recipe/read_optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/recipe/read_recipe.h"
#include "tests/ir/support/parsed_recipe.h"

namespace partita {
namespace {

TEST(ParseOptimizer_Muon, HasTorchsKeys_AndAdamWs) {
  const OptimizerRecipe o = *parsed_recipe(R"(
optimizer: {kind: muon, lr: 0.02, nesterov: false, ns_steps: 3, adjust_lr_fn: match_rms_adamw,
            adamw: {lr: 3e-4, match: '*wte*'}, groups: [{match: 'h.0.*', lr: 0.01, adamw: {eps: 1}}]})")
                                 .optimizer;
  EXPECT_EQ(o.momentum, 0.95);
  EXPECT_FALSE(o.nesterov);
  EXPECT_EQ(o.ns_steps, 3);
  EXPECT_EQ(o.adjust_lr_fn, AdjustLr::kMatchRmsAdamW);
  EXPECT_EQ(o.rule_of("wte", 2).lr, 3e-4);
  EXPECT_EQ(o.rule_of("h.0.w", 2).lr, 0.01);
  EXPECT_EQ(o.rule_of("h.0.b", 1).lr, 3e-4);  // a group changes what it says of adamw, and no more
  EXPECT_EQ(o.rule_of("h.0.b", 1).eps, 1);
}

TEST(ParseOptimizer_Muon, IsRefused) {
  const struct {
    const char *text, *message;
  } kCases[] = {
      {"optimizer: {kind: muon, betas: [0, 0]}", "t:1:25: optimizer: kind muon has no 'betas'; remove it"},
      {"optimizer: {kind: adamw, adamw: {lr: 1}}", "t:1:26: optimizer: kind adamw has no 'adamw'; remove it"},
      {"optimizer: {kind: muon, adamw: {momentum: 1}}", "t:1:33: optimizer.adamw: unknown key 'momentum'"},
      {"optimizer: {kind: muon, ns_coefficients: [1, 2]}",
       "t:1:42: optimizer.ns_coefficients: expected a list of three numbers"},
      {"optimizer: {kind: muon, ns_steps: 100}", "t:1:35: optimizer.ns_steps: expected an integer"},
  };
  for (const auto& c : kCases) expect_refused(c.text, c.message);
}

TEST(ParseSchedule, IsRefused) {
  const struct {
    const char *text, *message;
  } kCases[] = {
      {"schedule: {kind: cosine}", "t:1:11: schedule: kind cosine needs 'total' (steps)"},
      {"schedule: {kind: wsd, total: 5}", "t:1:11: schedule: kind wsd needs 'decay' (steps)"},
      {"schedule: {kind: linear, decay: 5, total: 9}", "t:1:26: schedule: kind linear has no 'decay'; remove it"},
      {"schedule: {kind: linear, warmup: 11, total: 10}", "t:1:11: schedule: expected warmup <= total, found 11 > 10"},
      {"schedule: {kind: wsd, warmup: 6, decay: 5, total: 10}",
       "t:1:11: schedule: expected warmup + decay <= total, found 6 + 5 > 10"},
      {"schedule: {warmup_start: 0.1}", "t:1:11: schedule: kind constant needs 'warmup' (steps) with 'warmup_start'"},
      {"schedule: {warmup: -1}", "t:1:20: schedule.warmup: expected an integer >= 0, found '-1'"},
      {"schedule: {kind: one_cycle, warmup: 3, total: 9}",
       "t:1:29: schedule: kind one_cycle has no 'warmup'; remove it"},
      {"schedule: {kind: one_cycle, total: 3}", "t:1:11: schedule: expected pct_start x total > 1"},
      {"schedule: {kind: one_cycle, total: 9, pct_start: 0.6, three_phase: true}",
       "schedule.pct_start: expected at most"},
      {"schedule: {kind: inverse_sqrt, min_lr: 1}", "t:1:32: schedule: kind inverse_sqrt has no 'min_lr'; remove it"},
      {"schedule: {kind: step}",
       "t:1:11: schedule: kind step needs exactly one of 'step_size' and 'milestones' (steps)"},
      {"schedule: {kind: step, milestones: [5, 2]}", "t:1:36: schedule.milestones: expected steps in ascending order"},
      {"schedule: {kind: step, warmup: 3, milestones: [2]}", "schedule.milestones: expected steps after warmup 3"},
      {"schedule: {kind: piecewise}", "t:1:11: schedule: kind piecewise needs 'points' ([step, share of the rate])"},
      {"schedule: {kind: piecewise, points: 3}",
       "t:1:37: schedule.points: expected 1 to 32768 pairs [step, share of the rate], found '3'"},
      {"schedule: {kind: piecewise, points: [[0, 1], 3]}", "t:1:46: schedule.points[1]: expected a pair [step, share"},
      {"schedule: {kind: piecewise, points: [[1, 1]]}", "schedule.points[0]: expected step 0 first"},
      {"schedule: {kind: piecewise, points: [[0, 1], [3, 1], [3, 2]]}", "schedule.points[2]: expected a step after 3"},
      {"schedule: {kind: piecewise, points: [[0, -1]]}", "schedule.points[0]: expected a number >= 0, found '-1'"},
      {"schedule: {kind: piecewise, points: [[0, 1]], warmup: 2}", "kind piecewise has no 'warmup'; remove it"},
      {"schedule: {kind: cosine, total: 3, points: [[0, 1]]}", "kind cosine has no 'points'; remove it"},
  };
  for (const auto& c : kCases) expect_refused(c.text, c.message);
}

}  // namespace
}  // namespace partita
