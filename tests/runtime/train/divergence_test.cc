#include "runtime/train/divergence.h"

#include <cmath>
#include <limits>

#include "base/exit_code.h"
#include "base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "runtime/run_flags.h"

namespace partita::runtime {
namespace {

using ::testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();

StepMetrics step(double loss, double norm = 1) {
  StepMetrics m;
  m.step = 7;
  m.loss = loss;
  m.grad_norm = norm;
  return m;
}

TEST(DivergenceWatch, NamesTheStepAndWhatIsNotFinite) {
  DivergenceWatch watch({});
  EXPECT_FALSE(watch.look(step(1)));
  auto found = watch.look(step(kNan));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->action, DivergenceAction::kStop);
  EXPECT_EQ(found->what, "step 7 (counted from 0): the loss is nan");
  found = watch.look(step(2, kInfinity));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->what, "step 7 (counted from 0): the norm of the gradients is inf, where the loss is 2");
  EXPECT_TRUE(DivergenceWatch::is_good(step(1)));
  EXPECT_FALSE(DivergenceWatch::is_good(step(1, kNan)));
}

TEST(DivergenceWatch, OverflowThatTheLossScaleHandles_IsNone) {
  DivergenceWatch watch({});
  StepMetrics m = step(2, kInfinity);
  m.skipped = true;
  m.loss_scale = 65536;
  for (int64_t k = 0; k < DivergenceWatch::kMostSkips; ++k) EXPECT_FALSE(watch.look(m));
  EXPECT_FALSE(DivergenceWatch::is_good(m));
  auto found = watch.look(m);  // it does not
  ASSERT_TRUE(found);
  EXPECT_THAT(found->what, HasSubstr("and it was not finite in the 40 steps before"));
  EXPECT_FALSE(watch.look(step(1)));
  EXPECT_FALSE(watch.look(m));
  m.loss = kNan;
  EXPECT_TRUE(watch.look(m));
}

TEST(DivergenceWatch, AStepThatTheProgramSkipped) {
  StepMetrics m = step(2, kInfinity);
  m.skipped = true;
  DivergenceWatch stops({}), skips({.on_nonfinite = DivergenceAction::kSkip});
  EXPECT_EQ(stops.look(m)->action, DivergenceAction::kStop);  // no loss scale is at work
  for (int64_t k = 0; k < DivergenceWatch::kMostSkips; ++k) EXPECT_EQ(skips.look(m)->action, DivergenceAction::kSkip);
  const auto found = skips.look(m);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->action, DivergenceAction::kStop);  // it is not the samples
  EXPECT_THAT(found->what, HasSubstr("and it was not finite in the 40 steps before"));
}

TEST(DivergenceWatch, ASpikeIsMeasuredAgainstTheLossesBefore) {
  const DivergenceOptions options = {.spike =
                                         LossSpike{.factor = 2, .window = 3, .action = DivergenceAction::kRollback}};
  DivergenceWatch watch(options);
  EXPECT_FALSE(watch.look(step(1)));
  EXPECT_FALSE(watch.look(step(9)));  // too few before it
  EXPECT_FALSE(watch.look(step(2)));
  EXPECT_FALSE(watch.look(step(8)));  // of a mean of 4
  auto found = watch.look(step(13));  // of a mean of 19/3
  ASSERT_TRUE(found);
  EXPECT_EQ(found->action, DivergenceAction::kRollback);
  EXPECT_THAT(found->what, HasSubstr("the loss is 13, 2.05 times the mean of the 3 before it, 6.33333"));
  EXPECT_FALSE(watch.look(step(12)));  // the spike is not among them
  DivergenceWatch resumed(options);
  resumed.restore(watch.losses());
  EXPECT_TRUE(resumed.look(step(15)));
}

TEST(DivergenceOptions, OfFlags) {
  RunFlags flags;
  flags.on_nonfinite = "rollback";
  flags.loss_spike = "2.5,30,stop";
  const nlohmann::json none = nlohmann::json::object();
  const auto read = flags.divergence_options(none);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(read->rolls_back());
  EXPECT_EQ(read->spike->factor, 2.5);
  EXPECT_EQ(read->spike->window, 30);
  EXPECT_EQ(read->spike->action, DivergenceAction::kStop);
  for (const char* bad : {"1", "x", "3,0", "3,10,hope", "3,10,skip", "3,10,stop,4", "inf,"}) {
    flags.loss_spike = bad;
    EXPECT_THAT(std::string(flags.divergence_options(none).status().message()),
                HasSubstr("expected a factor > 1, a number of steps from 1 to 100000, and warn, rollback or stop"));
  }
}

TEST(DivergenceOptions, OfTheRecipe_UnlessFlagsSayOtherwise) {
  const nlohmann::json run = {{"on_nonfinite", "rollback"},
                              {"loss_spike", {{"factor", 2.0}, {"window", 5}, {"action", "stop"}}},
                              {"timeout", {{"step", 90.5}, {"collective", 3}}}};
  RunFlags flags;
  auto read = flags.divergence_options(run);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->on_nonfinite, DivergenceAction::kRollback);
  EXPECT_EQ(read->spike->window, 5);
  flags.timeouts = {"collective=4"};
  const auto limits = flags.limits(run);
  ASSERT_TRUE(limits.ok()) << limits.status();
  EXPECT_EQ(limits->phases[static_cast<size_t>(Phase::kStep)], 90.5);
  EXPECT_EQ(limits->collective, 4);
  flags.only_warn();
  read = flags.divergence_options(run);
  EXPECT_EQ(read->on_nonfinite, DivergenceAction::kWarn);
  EXPECT_FALSE(read->spike);
  flags.on_nonfinite = "skip";
  EXPECT_THAT(std::string(flags.divergence_options(run).status().message()), HasSubstr("--set run.on_nonfinite=skip"));
  EXPECT_TRUE(flags.divergence_options({{"on_nonfinite", "skip"}}).ok());
}

TEST(Divergence, EndsWithACodeOfItsOwn_WhateverIsSaidBeforeIt) {
  EXPECT_EQ(exit_code_of(with_context(diverged_error("so"), "there")), ExitCode::kDiverged);
}

}  // namespace
}  // namespace partita::runtime
