// Keys said over again on the command line, recipes over a DeepSpeed configuration, and recipes written out.
#include "ir/recipe/overrides.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/recipe/read_recipe.h"
#include "ir/recipe/write_recipe.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

using testing::HasSubstr;

class Overrides : public testing::Test {
 protected:
  Recipe load(const std::string& text, const std::vector<std::string>& sets) {
    auto recipe = load_recipe(out_.write("train.yaml", text), sets);
    EXPECT_TRUE(recipe.ok()) << recipe.status();
    return recipe.ok() ? *recipe : Recipe();
  }
  std::string refused(const std::string& text, const std::vector<std::string>& sets) {
    return std::string(load_recipe(out_.write("train.yaml", text), sets).status().message());
  }
  TempFolder out_;
};

TEST_F(Overrides, ComeOverTheFile) {
  const std::string text = "optimizer: {kind: adamw, lr: 0.1, betas: [0.8, 0.9]}\nbatch: {global: 8}\n";
  const Recipe r = load(text, {"optimizer.lr=1e-4", "batch.global=64", "seed=7", "pin.tensor=2", "clip_grad_norm=1"});
  EXPECT_EQ(r.optimizer->lr, 1e-4);
  EXPECT_EQ(r.optimizer->betas[0], 0.8);
  EXPECT_EQ(r.batch.global, 64);
  EXPECT_EQ(r.seed, 7);
  EXPECT_EQ(r.pin.axis("tensor"), 2);
  EXPECT_EQ(r.clip_grad_norm, 1.0);
  // A rate alone is AdamW's; the last word counts.
  EXPECT_EQ(load("", {"optimizer.lr=0.5", "optimizer.lr=0.25"}).optimizer->kind, OptimizerKind::kAdamW);
  EXPECT_EQ(load("", {"optimizer.lr=0.5", "optimizer.lr=0.25"}).optimizer->lr, 0.25);
}

TEST_F(Overrides, MistakesAreTheCommandLines) {
  const std::string text = "optimizer: {kind: adamw}\n";
  EXPECT_EQ(refused(text, {"optimizer.lr=-1"}), "command line: optimizer.lr: expected a number >= 0, found '-1'");
  EXPECT_THAT(refused(text, {"optimizer.lrr=1"}), HasSubstr("optimizer: unknown key 'lrr'"));
  EXPECT_THAT(refused(text, {"lr"}), HasSubstr("--set 'lr': expected KEY=VALUE"));
  EXPECT_THAT(refused(text, {"optimizer.kind.x=1"}), HasSubstr("something other than a section"));
  EXPECT_THAT(refused("optimiser: 1\n", {"seed=1"}), HasSubstr("train.yaml:1:1: unknown key 'optimiser'"));
}

TEST_F(Overrides, ARecipeOverADeepSpeedConfiguration) {
  out_.write("ds_config.json", R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "weight_decay": 0.1}},
    "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto"}},
    "bf16": {"enabled": true}, "zero_optimization": {"stage": 2}})");
  const Recipe r = load(
      "deepspeed: ds_config.json\nloss: {kind: cross_entropy}\noptimizer: {lr: 0.003}\n"
      "schedule: {kind: linear, warmup: 10, total: 100}\n",
      {"seed=3"});
  EXPECT_EQ(r.loss.at(0).kind, LossKind::kCrossEntropy);
  EXPECT_EQ(r.optimizer->lr, 0.003);
  EXPECT_EQ(r.optimizer->weight_decay, 0.1);
  EXPECT_EQ(r.schedule.total, 100);
  EXPECT_EQ(r.batch.micro, 2);
  EXPECT_EQ(r.batch.accumulation, 4);
  EXPECT_EQ(r.precision, Precision::kBf16);
  EXPECT_EQ(r.pin.zero, 2);
  EXPECT_EQ(r.seed, 3);
  // Alone, without the total, the configuration is refused, and says the way out.
  EXPECT_THAT(refused(TempFolder::read(out_ / "ds_config.json"), {}),
              HasSubstr("say `schedule` in a train.yaml that has"));
}

TEST_F(Overrides, WrittenRecipesReadBackToThemselves) {
  for (const char* text :
       {"",
        "loss: {kind: mse, output: 'it''s', target: y}\noptimizer: {kind: momentum, lr: 0.1, nesterov: true}\n",
        "optimizer: {kind: adagrad}\nprecision: fp16\nloss_scale: 128\nkernels: {attention: math}\n",
        "kernels: {attention: cudnn}\n",
        "precision: fp16\nloss_scale: {initial: 1024, window: 10}\nbatch: {micro: 4, accumulation: 2}\n",
        "schedule: {kind: wsd, warmup: 5, total: 100, decay: 10, min_lr: 1e-5}\nbind: {batch: 8}\nnames: {a: b}\n",
        "optimizer: {kind: rmsprop, centered: true, groups: [{match: [a, 'b*'], lr: 0.5, alpha: 0.5}]}\n"
        "schedule: {kind: one_cycle, total: 9, pct_start: 0.25, anneal_strategy: linear, three_phase: true}\n",
        "optimizer: {kind: lion, betas: [0.5, 0.25]}\nschedule: {kind: polynomial, total: 9, power: 2.5, warmup: 1, "
        "warmup_start: 0}\n",
        "optimizer: {kind: adafactor, eps2: 0.5}\nschedule: {kind: step, milestones: [2, 4], warmup: 2, gamma: 0.5}\n",
        "batch: {global: [[0, 4], [3, 8], [10, 16]], micro: 2}\n",
        "schedule: {kind: piecewise, points: [[0, 0.5], [3, 1], [10, 0.123456789012345]]}\n",
        "optimizer: {kind: adamw_8bit, betas: [0.5, 0.25], eps: 0.5}\n",
        "optimizer: {kind: muon, momentum: 0.5, nesterov: false, ns_coefficients: [3, -3, 1], ns_steps: 4, "
        "adjust_lr_fn: "
        "match_rms_adamw, adamw: {lr: 0.5, betas: [0.5, 0.25], eps: 1, weight_decay: 2, match: ['a*', b]}, groups: "
        "[{match: c, lr: 0.25, adamw: {lr: 0.125}}]}\n",
        "schedule: {kind: inverse_sqrt, warmup: 2, timescale: 5}\n",
        "schedule: {kind: step, step_size: 2}\n",
        "init:\n- {match: '*', normal: 0.02}\n- {match: a, uniform: 0.5}\n- {match: b, ones}\n- {match: c, kaiming}\n"
        "- {match: d, xavier: normal}\n",
        "data: {end_of_document: 0, sources: [{path: a.bin, weight: 0.5, dtype: uint16}, {path: b.idx, weight: 2}], "
        "shift: true}\n"
        "evaluate: {batches: 3, data: {kind: synthetic, vocab: 9}}\n",
        "semantics: {batch_norm: replica, moe: {capacity_factor: 1.25, group: 4}}\ncompress: int8\nreproducible: 4\n",
        "reproducible: {samples: 8, tensor: 4}\n",
        "run: {on_nonfinite: rollback, loss_spike: {factor: 2, window: 7, action: stop}, timeout: {data: 9.5}}\n",
        "pin: {data: 2, zero: 3, zero_group: node, hierarchical_group: 2, prefetch_blocks: 4, bucket_bytes: {2: 5, 8: "
        "7}, cuts: ['a*'], "
        "stages: [{data: 2}, {tensor: 2}], '*.up': {out: "
        "tensor}}\n"
        "trainable: ['*.w']\nfrozen: [x]\nclip_grad_norm: 1\nclip_grad_value: 0.5\nema: {decay: 0.9}\nrecompute: "
        "full\nseed: 9\n"}) {
    const auto recipe = parse_recipe(text, "t");
    ASSERT_TRUE(recipe.ok()) << recipe.status();
    const auto again = parse_recipe(format_recipe(*recipe), "again");
    ASSERT_TRUE(again.ok()) << again.status() << "\n" << format_recipe(*recipe);
    EXPECT_EQ(*again, *recipe) << format_recipe(*recipe);
  }
}

TEST(Recipe, StepKeys_AreWhatAStepGoesBy) {
  const auto recipe =
      parse_recipe("loss: {kind: l1}\noptimizer: {kind: sgd, lr: 2}\nema: {decay: 0.9}\nseed: 9\n", "t");
  ASSERT_TRUE(recipe.ok()) << recipe.status();
  const std::map<std::string, std::string> keys = step_keys(*recipe);
  EXPECT_NE(keys.at("optimizer").find("kind: sgd, lr: 2"), std::string::npos) << keys.at("optimizer");
  EXPECT_EQ(keys.at("ema"), "{decay: 0.9}");
  EXPECT_EQ(keys.count("seed"), 0);
}

}  // namespace
}  // namespace partita
