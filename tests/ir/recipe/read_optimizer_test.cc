// Keys of muon, and what is refused of them.
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
  for (const auto& c : kCases) {
    const auto recipe = parse_recipe(c.text, "t");
    ASSERT_FALSE(recipe.ok()) << c.text;
    EXPECT_THAT(std::string(recipe.status().message()), testing::StartsWith(c.message));
  }
}

}  // namespace
}  // namespace partita
