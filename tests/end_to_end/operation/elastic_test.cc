// A run that finds other numbers of ranks goes on under the plan for them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <array>
#include <filesystem>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/cat.h"
#include "nlohmann/json.hpp"
#include "runtime/checkpoint/checkpoint_manifest.h"
#include "tests/support/command.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

class Elastic : public testing::Test {
 protected:
  void SetUp() override {
    const Outcome made = run_partita("model mlp --layers 16,32,8 --batch 8 --with-weights --quiet -o " + model_);
    ASSERT_EQ(made.code, 0) << made.text;
  }
  Outcome compile(const std::string& flags, const std::string& recipe = "reproducible: 4\n") {
    out_.write(
        "train.yaml",
        "loss: {kind: mse, target: target}\noptimizer: {kind: adamw, lr: 0.01}\ndata: {kind: synthetic}\n" + recipe);
    return run_partita("compile " + model_ + " --train " + (out_ / "train.yaml") + " -o " + bundle_ + " " + flags);
  }
  Outcome run(const std::string& flags) { return run_partita("run " + bundle_ + " --threads 1 --quiet " + flags); }

  TempFolder out_;
  const std::string model_ = out_ / "mlp.onnx", bundle_ = out_ / "bundle", folder_ = out_ / "ckpt";
};

TEST_F(Elastic, RunGoesOnWithFewerRanksAndWithMore_ToTheSameBits) {
  const Outcome made = compile("--ranks 4 --also 2,1");
  ASSERT_EQ(made.code, 0) << made.text;
  EXPECT_THAT(made.text, HasSubstr("also for 2 ranks: data 2"));
  Outcome o = run_partita("verify " + bundle_);
  ASSERT_EQ(o.code, 0) << o.text;
  EXPECT_THAT(o.text, HasSubstr("the plan for 2 ranks:\nverified: 2 ranks, "));
  EXPECT_THAT(o.text, HasSubstr("the plan for 1 rank:\nverified: 1 rank, "));
  const std::string checkpoint = " --every 2 --checkpoint " + folder_;
  // Killed with its supervisor at some moment after its second checkpoint.
  o = run_command(partita_program() + " run " + bundle_ + " --processes --threads 1 --quiet --steps 1000000" +
                  checkpoint + " & job=$!; until [ \"$(ls " + folder_ +
                  " 2>/dev/null | grep -c ^step)\" -ge 2 ]; do sleep 0.01; done; kill -9 $job; wait $job");
  EXPECT_EQ(o.code, 137) << o.text;
  const int64_t reached = runtime::list_checkpoints(folder_).back();
  for (const auto& [ranks, steps] : {std::pair{2, 3}, {1, 4}, {4, 7}}) {
    o = run(cat("--ranks ", ranks, " --processes --require-certificate --resume --steps ", reached + steps, checkpoint,
                " --save ", out_ / "parts.safetensors"));
    EXPECT_EQ(o.code, 0) << o.text;
  }
  EXPECT_EQ(run(cat("--steps ", reached + 7, " --save ", out_ / "whole.safetensors")).code, 0);
  EXPECT_TRUE(TempFolder::read(out_ / "parts.safetensors") == TempFolder::read(out_ / "whole.safetensors"));
}

// As of a device that fails soon after each start: the others go on without it, in one start.
TEST_F(Elastic, RankThatIsLostAgainAndAgain_IsLeftOut) {
  ASSERT_EQ(compile("--ranks 4 --also 2 --quiet").code, 0);
  const std::string flags = " --threads 1 --quiet --every 50 --checkpoint " + folder_;
  // Whoever has device 1 is killed.
  const Outcome o = run_command(
      partita_program() + " run " + bundle_ + " --processes --max-restarts 9 --steps 1000 --save " +
      (out_ / "parts.safetensors") + flags +
      " & job=$!; while kill -0 $job 2>/dev/null; do for p in $(pgrep -P $job); do " +
      "tr '\\0' '\\n' < /proc/$p/environ 2>/dev/null | grep -qx PARTITA_DEVICE=1 && kill -9 $p; done; sleep 0.2; done; "
      "wait $job");
  EXPECT_EQ(o.code, 0) << o.text;
  EXPECT_THAT(o.text,
              HasSubstr("rank 1 was lost 3 times in a row; going on without device 1 of this host, with 2 ranks"));
  EXPECT_THAT(o.text, HasSubstr("restart 3 of 9"));
  EXPECT_THAT(o.text, Not(HasSubstr("restart 4 of 9")));
  EXPECT_EQ(run("--steps 1000 --save " + (out_ / "whole.safetensors")).code, 0);
  EXPECT_TRUE(TempFolder::read(out_ / "parts.safetensors") == TempFolder::read(out_ / "whole.safetensors"));
}

// Sums in other orders: the same up to rounding, in layouts whose pins stay.
TEST_F(Elastic, OtherLayouts_GoOnWithinRounding) {
  ASSERT_EQ(compile("--ranks 4 --pin pipeline=2 --pin micro_batch=2 --also 2 --quiet", "").code, 0);
  ASSERT_EQ(run_partita("verify " + bundle_).code, 0);
  const std::string metrics = " --metrics " + (out_ / "metrics.jsonl");
  const auto losses = [&] {
    std::vector<double> all;
    std::istringstream lines(TempFolder::read(out_ / "metrics.jsonl"));
    for (std::string line; std::getline(lines, line);) all.push_back(nlohmann::json::parse(line)["loss"]);
    return all;
  };
  ASSERT_EQ(run("--steps 9" + metrics).code, 0);
  const std::vector<double> whole = losses();
  fs::remove(out_ / "metrics.jsonl");
  for (const auto& [ranks, steps] : {std::pair{4, 3}, {2, 6}, {4, 9}}) {
    const Outcome o = run(cat("--ranks ", ranks, " --resume --checkpoint ", folder_, " --steps ", steps, metrics));
    ASSERT_EQ(o.code, 0) << o.text;
  }
  const std::vector<double> parts = losses();
  ASSERT_EQ(parts.size(), whole.size());
  for (size_t k = 0; k < whole.size(); ++k) EXPECT_NEAR(parts[k], whole[k], 1e-5 * whole[k]) << k;
}

TEST_F(Elastic, Launcher_FindsThePlanForItsRanks_OrIsTriedAgain) {
  ASSERT_EQ(compile("--ranks 4 --also 2 --quiet").code, 0);
  const auto start = [&](int ranks) {
    std::string all, ends;
    for (int rank = 0; rank < ranks; ++rank) {
      append(all, "RANK=", rank, " LOCAL_RANK=", rank, " WORLD_SIZE=", ranks, " LOCAL_WORLD_SIZE=", ranks,
             " MASTER_ADDR=127.0.0.1 MASTER_PORT=", 20000 + ::getpid() % 20000, " ", bundle_,
             "/rank --backend tcp --quiet --threads 1 --steps 3 --save ", out_ / "found.safetensors", " & p", rank,
             "=$!; ");
      append(ends, "wait $p", rank, " || exit $?; ");
    }
    return run_command(all + ends);
  };
  Outcome o = start(2);
  EXPECT_EQ(o.code, 0) << o.text;
  ASSERT_EQ(run("--steps 3 --save " + (out_ / "whole.safetensors")).code, 0);
  EXPECT_TRUE(TempFolder::read(out_ / "found.safetensors") == TempFolder::read(out_ / "whole.safetensors"));
  o = start(3);
  EXPECT_EQ(o.code, 129);
  EXPECT_THAT(o.text, HasSubstr("this bundle is for 4 or 2 ranks and 3 started"));
  o = run("--ranks 3 --steps 3");
  EXPECT_EQ(o.code, 129);
  EXPECT_THAT(o.text, HasSubstr("this bundle is for 4 or 2 ranks and 3 started"));
  o = run_command(bundle_ + "/rank --quiet --steps 3");  // nobody started it
  EXPECT_EQ(o.code, 2);
  EXPECT_THAT(o.text, HasSubstr("and 1 started; start it with mpirun -n 4 "));
}

// The whole stands for its plans: what is changed in one is found by who opens it.
TEST_F(Elastic, PlansAreSealed) {
  ASSERT_EQ(compile("--ranks 2 --also 1 --quiet").code, 0);
  const std::string plan = bundle_ + "/plans/1";
  EXPECT_TRUE(fs::is_symlink(plan + "/initial.safetensors"));
  EXPECT_FALSE(fs::exists(plan + "/rank"));
  const std::string image = TempFolder::read(plan + "/program.partita"),
                    manifest = TempFolder::read(plan + "/manifest.json");
  out_.write("bundle/plans/1/program.partita", image.substr(0, image.size() - 1) + "x");
  EXPECT_EQ(run("--ranks 1 --steps 1").code, 2);
  EXPECT_EQ(run("--ranks 2 --steps 1").code, 0);
  out_.write("bundle/plans/1/program.partita", image);
  out_.write("bundle/plans/1/manifest.json", manifest + "\n");
  EXPECT_EQ(run("--ranks 2 --steps 1").code, 2);
}

TEST_F(Elastic, WhatWouldTrainOtherwise_IsRefused) {
  for (const auto& [flags, recipe, message] : std::vector<std::array<std::string, 3>>{
           {"--ranks 4 --also 3", "", "--also 3: "},
           {"--ranks 4 --also 4", "", "--also 4: there is a plan for 4 ranks already"},
           {"--ranks 4 --pin tensor=2 --also 1", "", "--also 1: the pins need a multiple of 2 ranks"},
           {"--ranks 2 --pin pipeline=2 --pin schedule=pipedream --also 1", "", "--also: schedule: pipedream"},
           {"--ranks 2 --set compress=int8 --also 1", "", "on 1 ranks it would be another training: compress: "}}) {
    const Outcome o = compile(flags, recipe);
    EXPECT_EQ(o.code, 2) << flags;
    EXPECT_THAT(o.text, HasSubstr(message));
  }
}

}  // namespace
}  // namespace partita
