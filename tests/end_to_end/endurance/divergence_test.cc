// Runs whose numbers go wrong, by their samples or by their learning rate.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "nlohmann/json.hpp"
#include "runtime/checkpoint/checkpoint_manifest.h"
#include "runtime/files/npz.h"
#include "tests/support/command.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

using runtime::CheckpointVerdict;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kBatch = 8, kFeatures = 4, kResults = 2;

class Diverging : public testing::Test {
 protected:
  // An MLP with a squared error, for samples of which those of one step may be far too large.
  void SetUp() override {
    const Outcome made = run_partita("model mlp --layers 4,8,2 --batch 8 --with-weights --quiet -o " + model_);
    ASSERT_EQ(made.code, 0) << made.text;
    out_.write("train.yaml", "loss: {kind: mse, target: target}\noptimizer: {kind: adamw, lr: 0.01}\n");
  }
  std::string data(int64_t bad_step, float bad_target = 0) {
    constexpr int64_t kSteps = 40;
    std::vector<float> x, t;
    for (int64_t k = 0; k < kSteps * kBatch; ++k) {
      for (int64_t f = 0; f < kFeatures; ++f) x.push_back(static_cast<float>((k * 7 + f * 3) % 11) / 11);
      for (int64_t r = 0; r < kResults; ++r) t.push_back(static_cast<float>((k + r) % 5) / 5);
    }
    const size_t bad = static_cast<size_t>(bad_step * kBatch + 3);
    if (bad_step >= 0 && bad_target == 0) x[bad * kFeatures] = 3e38F;
    if (bad_target != 0) t[bad * kResults] = bad_target;
    const std::string path = out_ / "data.npz";
    EXPECT_TRUE(
        runtime::write_npz(path, {{"x", DType::kF32, {kSteps * kBatch, kFeatures}, std::as_bytes(std::span(x))},
                                  {"target", DType::kF32, {kSteps * kBatch, kResults}, std::as_bytes(std::span(t))}})
            .ok());
    return path;
  }
  std::string compile(const std::string& flags) {
    const Outcome o = run_partita("compile " + model_ + " --train " + (out_ / "train.yaml") + " --quiet -o " +
                                  (out_ / "bundle") + " " + flags);
    EXPECT_EQ(o.code, 0) << o.text;
    return out_ / "bundle";
  }
  Outcome run(const std::string& bundle, const std::string& data, const std::string& flags) {
    return run_partita("run " + bundle + " --threads 1 --quiet --data " + data + " --checkpoint " + folder_ +
                       " --metrics " + metrics_ + " " + flags);
  }
  CheckpointVerdict verdict(int64_t step) {
    return runtime::verdict_on(folder_ + "/" + runtime::checkpoint_name(step));
  }
  std::vector<nlohmann::json> lines() {
    std::vector<nlohmann::json> all;
    std::ifstream in(metrics_);
    for (std::string line; std::getline(in, line);) all.push_back(nlohmann::json::parse(line));
    return all;
  }

  TempFolder out_;
  std::string model_ = out_ / "mlp.onnx", folder_ = out_ / "ckpt", metrics_ = out_ / "metrics.jsonl";
};

TEST_F(Diverging, Samples_StopTheRunWithACodeOfItsOwn_AndLeaveTheGoodCheckpoints) {
  for (const char* layout : {"", "--ranks 2 --pin data=2", "--ranks 2 --pin tensor=2", "--ranks 2 --pin pipeline=2",
                             "--ranks 2 --like zero3"}) {
    SCOPED_TRACE(layout);
    std::filesystem::remove_all(folder_);
    const Outcome o = run(compile(layout), data(10), "--steps 30 --every 5 --keep 1 --find-bad-value 0");
    EXPECT_EQ(o.code, 5) << o.text;
    EXPECT_THAT(o.text, HasSubstr("step 10 (counted from 0): the loss is "));
    EXPECT_THAT(o.text, HasSubstr("the good checkpoints are in "));
    EXPECT_THAT(o.text, Not(HasSubstr("not finite: ")));
    EXPECT_THAT(runtime::list_checkpoints(folder_), ElementsAre(5, 10));
    EXPECT_EQ(verdict(5), CheckpointVerdict::kGood);
    EXPECT_EQ(verdict(10), CheckpointVerdict::kBad);  // the step that began from it was not finite
    const Outcome again = run(out_ / "bundle", data(-1), "--steps 12 --every 5 --resume");
    EXPECT_EQ(again.code, 0) << again.text;
    EXPECT_THAT(again.text, HasSubstr("step-000000000010' is passed over: step 10 (counted from 0): the loss is "));
    EXPECT_EQ(lines().back()["step"], 11);
    EXPECT_EQ(verdict(10), CheckpointVerdict::kGood);  // taken again
  }
}

TEST_F(Diverging, RanksInProcesses_EndAlike) {
  const Outcome o = run(compile("--ranks 2 --pin data=2"), data(10), "--steps 30 --every 5 --processes");
  EXPECT_EQ(o.code, 5) << o.text;
  EXPECT_THAT(o.text, HasSubstr("step 10 (counted from 0): the loss is "));
  EXPECT_THAT(o.text, Not(HasSubstr("ended with code")));
  EXPECT_THAT(o.text, HasSubstr("not finite: step 10 (counted from 0), 'loss \\'mse\\'' (forward, mul)"));
}

TEST_F(Diverging, Rollback_GoesOnWithoutTheSamples_AlsoWhenResumed) {
  for (const char* layout : {"", "--ranks 2 --pin data=2", "--ranks 2 --pin pipeline=2"}) {
    SCOPED_TRACE(layout);
    std::filesystem::remove_all(folder_);
    std::filesystem::remove(metrics_);
    const std::string bundle = compile(layout), bad = data(10);
    Outcome o = run(bundle, bad, "--steps 20 --every 4 --on-nonfinite rollback --save " + (out_ / "whole.safetensors"));
    ASSERT_EQ(o.code, 0) << o.text;
    EXPECT_THAT(o.text, HasSubstr("back to step 8, and on without its samples, 80 to 87 of the stream"));
    EXPECT_THAT(o.text, HasSubstr("not finite: step 10 (counted from 0), 'loss \\'mse\\'' (forward, mul)"));
    const auto all = lines();
    EXPECT_EQ(all.back()["step"], 19);
    EXPECT_EQ(all.back()["skipped_samples"], kBatch);
    const auto back = std::find_if(all.begin(), all.end(), [](const auto& m) { return m.contains("rolled_back_to"); });
    ASSERT_NE(back, all.end());
    EXPECT_EQ((*back)["step"], 8);
    const auto manifest = runtime::read_manifest(*runtime::find_checkpoint(folder_));
    ASSERT_TRUE(manifest.ok());
    EXPECT_THAT(manifest->skipped, ElementsAre(runtime::SkippedSamples{80, kBatch}));
    EXPECT_EQ(manifest->samples, 21 * kBatch);
    // Resumed in between, it takes the same samples to the same bits.
    std::filesystem::remove_all(folder_);
    ASSERT_EQ(run(bundle, bad, "--steps 14 --every 4 --on-nonfinite rollback").code, 0);
    ASSERT_EQ(run(bundle, bad, "--steps 20 --resume --save " + (out_ / "parts.safetensors")).code, 0);
    EXPECT_EQ(TempFolder::read(out_ / "parts.safetensors"), TempFolder::read(out_ / "whole.safetensors"));
    // What step 10 takes then, and took before.
    o = run_partita("data " + bundle + " --data " + bad + " --step 10");
    EXPECT_THAT(o.text, HasSubstr("takes samples 80 to 87 of the stream"));
    EXPECT_THAT(o.text, HasSubstr("3: epoch 0, npz file '" + bad + "': sample 83\n"));
    o = run_partita("data " + bundle + " --data " + bad + " --step 15 --resume " + folder_ + "/step-000000000014");
    EXPECT_THAT(o.text, HasSubstr("takes samples 128 to 135 of the stream")) << o.text;
  }
}

// A step that is skipped leaves no trace: the states are those of a run without its samples, which a rollback makes.
TEST_F(Diverging, Skip_LeavesEveryStateAsItWas_InEveryLayout) {
  constexpr float kLossAlone = 1.9e19F;  // its square is infinite, and the gradients are not
  const std::string skip = " --set run.on_nonfinite=skip ";
  for (const auto& [layout, target] :
       {std::pair{"", 0.0F},
        {"--set precision=bf16 --set ema.decay=0.9", kLossAlone},
        {"--ranks 2 --pin data=2", kLossAlone},
        {"--ranks 2 --pin tensor=2", kLossAlone},
        {"--ranks 2 --like zero3", kLossAlone},
        {"--ranks 2 --pin data=2 --pin zero=2 --set batch.micro=2 --set reproducible=4", 0.0F},
        {"--ranks 2 --pin pipeline=2", kLossAlone},
        {"--ranks 4 --pin data=2 --pin pipeline=2 --pin micro_batch=1", 0.0F}}) {
    SCOPED_TRACE(layout);
    const std::string bundle = compile(layout + skip), bad = data(10, target);
    EXPECT_EQ(run_partita("verify " + bundle).code, 0);
    nlohmann::json states[2];  // with checksums
    for (const bool back : {false, true}) {
      std::filesystem::remove_all(folder_);
      std::filesystem::remove(metrics_);
      const Outcome o =
          run(bundle, bad, back ? "--steps 13 --every 4 --on-nonfinite rollback --find-bad-value 0" : "--steps 14");
      ASSERT_EQ(o.code, 0) << o.text;
      const std::string manifest = *runtime::find_checkpoint(folder_) + "/manifest.json";
      states[back] = nlohmann::json::parse(TempFolder::read(manifest))["manifest"]["tensors"];
      if (back) continue;
      EXPECT_THAT(o.text, HasSubstr("step 10 (counted from 0): the loss is inf"));
      EXPECT_THAT(o.text, HasSubstr("the step is skipped"));
      const auto all = lines();
      ASSERT_EQ(all.size(), 14U);
      for (const auto& m : all) EXPECT_EQ(m["skipped"], m["step"] == 10) << m;
      EXPECT_EQ(all[10]["grad_norm"].is_null(), target == 0);
    }
    EXPECT_EQ(states[0], states[1]);
  }
}

TEST_F(Diverging, Skip_EndsWhereItIsNotTheSamples_AndIsRefusedWhereItCannotBe) {
  out_.write("train.yaml",
             "loss: {kind: mse, target: target}\noptimizer: {kind: sgd, lr: 1.0e+30}\nrun: {on_nonfinite: skip}\n");
  Outcome o = run(compile(""), data(-1), "--steps 100 --every 5 --shuffle");
  EXPECT_EQ(o.code, 5) << o.text;
  EXPECT_THAT(o.text, HasSubstr("and it was not finite in the 40 steps before"));
  o = run(compile("--set run.on_nonfinite=stop"), data(-1), "--on-nonfinite skip");
  EXPECT_EQ(o.code, 2);
  EXPECT_THAT(o.text, HasSubstr("compile it with run: {on_nonfinite: skip} in train.yaml"));
  const std::string refused = "compile " + model_ + " --train " + (out_ / "train.yaml") + " -o " + (out_ / "none");
  o = run_partita(refused + " --ranks 2 --pin pipeline=2 --pin schedule=pipedream");
  EXPECT_EQ(o.code, 2);
  EXPECT_THAT(o.text, HasSubstr("run.on_nonfinite: skip: whether a step is finite is not known on all stages"));
  o = run_partita(refused + " --ranks 2 --set compress=int8");
  EXPECT_EQ(o.code, 2);
  EXPECT_THAT(o.text, HasSubstr("that run.on_nonfinite: skip leaves out as well"));
}

TEST_F(Diverging, RecipeSaysWhatIsDone_AndFlagsComeFirst) {
  const std::string bundle = compile("--set run.on_nonfinite=rollback --set run.loss_spike.factor=9");
  Outcome o = run(bundle, data(10), "--steps 12 --every 4");
  EXPECT_EQ(o.code, 0) << o.text;
  EXPECT_THAT(o.text, HasSubstr("back to step 8"));
  std::filesystem::remove_all(folder_);
  EXPECT_EQ(run(bundle, data(10), "--steps 12 --every 4 --on-nonfinite stop --find-bad-value 0").code, 5);
  o = run_partita("verify " + bundle + " --numeric");
  EXPECT_EQ(o.code, 0) << o.text;
}

// tools/name_bad_values does this for more causes and precisions.
TEST_F(Diverging, FirstValue_IsNamedWithNodeRanksAndOperands) {
  for (const std::string layout :
       {"", "--ranks 2 --pin data=2", "--ranks 2 --pin pipeline=2", "--ranks 2 --like zero3"}) {
    SCOPED_TRACE(layout);
    std::filesystem::remove_all(folder_);
    const std::string bundle = compile(layout), bad = data(10);
    const Outcome o = run(bundle, bad, "--steps 30 --every 4");
    EXPECT_EQ(o.code, 5) << o.text;
    EXPECT_THAT(o.text, HasSubstr("taking the steps again, to see which value went wrong first"));
    EXPECT_THAT(o.text, HasSubstr("not finite: step 10 (counted from 0), 'loss \\'mse\\'' (forward, mul)"));
    EXPECT_THAT(o.text, HasSubstr("infinite"));
    EXPECT_THAT(o.text, HasSubstr("  operand 0: "));
    EXPECT_THAT(o.text,
                HasSubstr(layout.find("pipeline") == layout.npos ? "on rank 0, 1 element" : "on rank 1, 1 element"));
    EXPECT_THAT(o.text, HasSubstr("its samples: partita data '" + bundle + "' --step 10"));
  }
  const Outcome o = run_partita("compare " + (out_ / "bundle") + " --nonfinite --data " + data(-1) + " --steps 3");
  EXPECT_EQ(o.text, "every value of steps 0 to 2 (counted from 0) is finite\n");
}

TEST_F(Diverging, Campaign_NamesWhatBeganIt_OfWeightsSamplesAndRates) {
  const Outcome campaign = run_command(std::string(PARTITA_TEST_DATA) +
                                       "/../../tools/name_bad_values --precisions fp32 --layouts tp2,pipeline4 "
                                       "--causes nan_weight2,rate --partita " +
                                       partita_program());
  EXPECT_EQ(campaign.code, 0) << campaign.text;
  EXPECT_THAT(campaign.text, HasSubstr("the node was the right one in 4 of 4"));
}

TEST_F(Diverging, LearningRate_IsNoFaultOfTheSamples_SoRollbacksEnd) {
  out_.write("train.yaml", "loss: {kind: mse, target: target}\noptimizer: {kind: sgd, lr: 1.0e+30}\n");
  const Outcome o = run(compile(""), data(-1), "--steps 30 --every 5 --on-nonfinite rollback");
  EXPECT_EQ(o.code, 5) << o.text;
  EXPECT_THAT(o.text, HasSubstr("after 3 rollbacks"));
}

TEST_F(Diverging, Warning_GoesOnAsItUsedTo) {
  const Outcome o = run(compile(""), data(10), "--steps 20 --every 5 --on-nonfinite warn");
  EXPECT_EQ(o.code, 0) << o.text;
  EXPECT_THAT(o.text, HasSubstr("step 10 (counted from 0): the loss is "));
  EXPECT_THAT(o.text, HasSubstr("training goes on"));
  EXPECT_EQ(verdict(5), CheckpointVerdict::kGood);  // the newest good one outlives three that are not
}

TEST_F(Diverging, RollbackWithoutCheckpoints_IsRefused) {
  const Outcome o = run_partita("run " + compile("") + " --data " + data(-1) + " --on-nonfinite rollback");
  EXPECT_EQ(o.code, 2);
  EXPECT_THAT(o.text, HasSubstr("rollback goes back to checkpoints; say --checkpoint FOLDER"));
}

}  // namespace
}  // namespace partita
