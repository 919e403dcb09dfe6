#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "ir/recipe/read_recipe.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

// As in DeepSpeed's tutorials, ZeRO-3 with offload.
TEST(DeepSpeedConfig_Tutorial, BecomesARecipe) {
  auto recipe = parse_recipe(R"({
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "steps_per_print": 10,
    "optimizer": {"type": "Adam", "params": {"lr": 3e-5, "betas": [0.8, 0.95], "weight_decay": 3e-7}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 3e-5, "warmup_num_steps": 500,
                                                 "warmup_type": "linear"}},
    "gradient_clipping": 1.0,
    "fp16": {"enabled": true, "loss_scale": 0, "initial_scale_power": 16, "hysteresis": "auto"},
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": true},
                          "offload_param": {"device": "cpu"}, "overlap_comm": true,
                          "stage3_max_live_parameters": 1e9}
  })",
                             "ds_config.json");
  ASSERT_TRUE(recipe.ok()) << recipe.status();
  EXPECT_EQ(recipe->batch.micro, 2);
  EXPECT_EQ(recipe->batch.accumulation, 4);
  EXPECT_FALSE(recipe->batch.global.has_value());
  ASSERT_TRUE(recipe->optimizer.has_value());
  EXPECT_EQ(recipe->optimizer->kind, OptimizerKind::kAdamW);  // DeepSpeed's Adam, unless adam_w_mode is false
  EXPECT_EQ(recipe->optimizer->lr, 3e-5);
  EXPECT_EQ(recipe->optimizer->betas[1], 0.95);
  EXPECT_EQ(recipe->schedule.warmup, 500);
  EXPECT_EQ(recipe->schedule.warmup_start, 0);
  EXPECT_EQ(recipe->clip_grad_norm, 1.0);
  EXPECT_EQ(recipe->precision, Precision::kFp16);
  EXPECT_EQ(recipe->pin.zero, 3);
  EXPECT_EQ(recipe->pin.offload, OffloadMode::kAll);
}

TEST(DeepSpeedConfig_Warmup, BeginsWhereItSays) {
  auto start = [](const std::string& scheduler) {
    auto recipe = parse_recipe(R"({"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {"lr": 4e-5}},
                                   "scheduler": {)" +
                                   scheduler + R"("warmup_type": "linear", "warmup_num_steps": 9}}})",
                               "ds_config.json");
    EXPECT_TRUE(recipe.ok()) << recipe.status();
    return recipe.ok() ? recipe->schedule.warmup_start : std::nullopt;
  };
  EXPECT_EQ(start(R"("type": "WarmupLR", "params": {"warmup_min_lr": 1e-5, "warmup_max_lr": 4e-5, )"), 0.25);
  EXPECT_EQ(start(R"("type": "WarmupCosineLR", "params": {"total_num_steps": 90, "warmup_min_ratio": 0.125, )"), 0.125);
}

TEST(DeepSpeedConfig_Rate, HasTheDefaultsOfItsClass) {
  auto optimizer = [](const std::string& keys) {
    auto recipe = parse_recipe(R"({"train_batch_size": 8, "optimizer": {"type": )" + keys + "}", "ds_config.json");
    EXPECT_TRUE(recipe.ok()) << recipe.status();
    return recipe.ok() ? *recipe->optimizer : OptimizerRecipe{};
  };
  EXPECT_EQ(optimizer(R"("Adagrad"})").lr, 1e-2);
  EXPECT_EQ(optimizer(R"("Adagrad"})").eps, 1e-10);
  EXPECT_EQ(optimizer(R"("Adagrad", "params": {"lr": 0.5, "eps": 0.25}})").lr, 0.5);
  EXPECT_EQ(optimizer(R"("Adagrad", "params": {"lr": 0.5, "eps": 0.25}})").eps, 0.25);
  EXPECT_EQ(optimizer(R"("Adam"})").lr, 1e-3);
  auto scheduled = [&](const std::string& type, const std::string& rate) {
    return optimizer(R"("Adam", "params": {"lr": 0.5}}, "scheduler": {"type": ")" + type + R"(", "params": {)" + rate +
                     R"("total_num_steps": 9, "warmup_num_steps": 2, "warmup_type": "linear"}})")
        .lr;
  };
  EXPECT_EQ(scheduled("WarmupDecayLR", R"("warmup_max_lr": 0.25, )"), 0.25);
  EXPECT_EQ(scheduled("WarmupDecayLR", R"("warmup_max_lr": "auto", )"), 0.5);
  EXPECT_EQ(scheduled("WarmupCosineLR", ""), 0.5);
}

TEST(DeepSpeedConfig_LossScale, IsThatOfTheRecipe) {
  auto scale = [](const std::string& fp16) {
    auto recipe = parse_recipe(R"({"train_batch_size": 8, "fp16": {"enabled": true)" + fp16 + "}}", "ds_config.json");
    EXPECT_TRUE(recipe.ok()) << recipe.status();
    return recipe.ok() ? recipe->loss_scale : LossScaleRecipe{};
  };
  EXPECT_EQ(scale(""), LossScaleRecipe{});  // DeepSpeed's defaults are ours
  EXPECT_EQ(scale(R"(, "loss_scale": 128)"), LossScaleRecipe{.fixed = 128});
  EXPECT_EQ(scale(R"(, "loss_scale": 0, "initial_scale_power": 12, "loss_scale_window": 500, "hysteresis": 3,
                      "min_loss_scale": 4, "consecutive_hysteresis": false)"),
            (LossScaleRecipe{.initial = 4096, .window = 500, .hysteresis = 3, .minimum = 4}));
}

TEST(DeepSpeedConfig_BadInput, NamesTheKey) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"train_batch_size": 8, "zero_optimisation": {}})", "zero_optimization"},
      {R"({"zero_optimization": {"stage": 4}})", "zero_optimization.stage"},
      {R"({"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2})", "multiple"},
      {R"({"train_batch_size": 8, "optimizer": {"type": "OneBitAdam"}})", "optimizer.type"},
      {R"({"train_batch_size": 8, "scheduler": {"type": "OneCycle"}})", "scheduler.type"},
      {R"({"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {"lr": 1e-5}},
           "scheduler": {"type": "WarmupLR", "params": {"warmup_type": "linear"}}})",
       "warmup_max_lr: expected the highest rate, found nothing: DeepSpeed takes 0.001 then, not the optimizer's "
       "1e-05"},
      {R"({"train_batch_size": 8, "optimizer": {"type": "Adam", "params": {"lr": 1e-5}},
           "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 1e-4, "warmup_max_lr": 1e-5,
                                                         "warmup_type": "linear"}}})",
       "warmup_min_lr: expected less than the rate, 1e-05"},
      {R"({"train_batch_size": 8, "fp16": {"enabled": "yes"}})", "fp16.enabled"},
      {R"({"train_batch_size": 8, "fp16": {"enabled": true, "loss_scale": -1}})", "fp16.loss_scale"},
      {R"({"train_batch_size": 8, "fp16": {"enabled": true, "hysteresis": 0}})", "fp16.hysteresis"},
      {R"({"train_batch_size": 8, "fp16": {"enabled": true, "initial_scale_power": 1, "min_loss_scale": 4}})",
       "fp16.min_loss_scale: expected at most 2^initial_scale_power, 2, found 4"},
      {R"({"train_batch_size": 8, "fp16": {"enabled": true, "consecutive_hysteresis": true}})",
       "fp16.consecutive_hysteresis: expected false"},
      {R"({"train_batch_size": 8, "fp16": {"enabled": true}, "bf16": {"enabled": true}})", "found both"},
  };
  for (const auto& [text, expected] : cases) {
    auto recipe = parse_recipe(text, "ds_config.json");
    ASSERT_FALSE(recipe.ok()) << text;
    EXPECT_NE(recipe.status().message().find(expected), std::string::npos) << recipe.status();
  }
}

TEST(DeepSpeedConfig, CheckpointsOnTheHost) {
  const char* kRest = R"({"train_batch_size": 8, "activation_checkpointing": {"partition_activations": true)";
  auto recompute = [&](const std::string& key) {
    auto recipe = parse_recipe(kRest + key + "}}", "ds_config.json");
    EXPECT_TRUE(recipe.ok()) << recipe.status();
    return recipe->recompute;
  };
  EXPECT_EQ(recompute(""), RecomputeMode::kAuto);
  EXPECT_EQ(recompute(R"(, "cpu_checkpointing": false)"), RecomputeMode::kAuto);
  EXPECT_EQ(recompute(R"(, "cpu_checkpointing": true)"), RecomputeMode::kFullOffload);
}

TEST(DeepSpeedConfig_Notes, NameWhatIsLeftOpenAndWhatMeansNothing) {
  const TempFolder folder;
  const std::string path = folder.write(
      "ds_config.json",
      R"({"train_batch_size": "auto", "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}, "wandb": {}, "tensorboard": {},
          "steps_per_print": 20, "zero_optimization": {"stage": 2, "cpu_offload": true}})");
  const std::vector<std::string> notes = notes_on_recipe(path);
  ASSERT_EQ(notes.size(), 3u);
  EXPECT_NE(notes[0].find("'train_batch_size', 'optimizer.params.lr'"), std::string::npos) << notes[0];
  EXPECT_NE(notes[1].find("key by key: 'wandb', 'tensorboard'"), std::string::npos) << notes[1];
  EXPECT_NE(notes[2].find("--log-every 20"), std::string::npos) << notes[2];
  EXPECT_EQ(load_recipe(path)->pin.offload, OffloadMode::kOptimizer);
  EXPECT_TRUE(notes_on_recipe(folder.write("train.yaml", "seed: 1\n")).empty());
}

}  // namespace
}  // namespace partita
