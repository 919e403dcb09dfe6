// What a user mistypes on the command line and in train.yaml: told at once, with what was meant.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>

#include "base/cat.h"
#include "runtime/files/npz.h"
#include "tests/support/command.h"
#include "tests/support/onnx_models.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const char kRecipe[] =
    "loss: {kind: mse, output: y, target: target}\noptimizer: {kind: sgd, lr: 0.1}\nbatch: {global: 4}\n";

class CommandLine : public testing::Test {
 protected:
  void SetUp() override {
    std::vector<float> values(3 * 6, 0.5f);
    auto bytes = std::as_bytes(std::span(values));
    ASSERT_TRUE(runtime::write_npz(folder_ / "data.npz", {{"x", DType::kF32, {6, 3}, bytes},
                                                          {"target", DType::kF32, {6, 2}, bytes.first(48)}})
                    .ok());
    folder_.write("train.yaml", kRecipe);
    folder_.write("model.onnx", linear_model().SerializeAsString());
  }

  Outcome train(const std::string& flags) {
    return run_command(partita_program() + " train " + folder_ / "model.onnx" + " --train " + folder_ / "train.yaml" +
                       " --data " + folder_ / "data.npz" + " " + flags);
  }

  void expect_refused(const std::string& arguments, const std::string& message) {
    Outcome o = run_command(partita_program() + " " + arguments);
    EXPECT_EQ(o.code, 2) << o.text;
    EXPECT_THAT(o.text, HasSubstr(message));
  }

  TempFolder folder_;
};

TEST_F(CommandLine, WordsThatAreNone) {
  expect_refused("trian m.onnx", "unknown command 'trian'; the nearest is 'train'; `partita --help` lists all");
  expect_refused("model resnt -o m.onnx", "unknown command 'resnt'; the nearest is 'resnet'; `partita model --help`");
  expect_refused("train m.onnx --rank 2", "unknown option '--rank'; the nearest is '--ranks'; `partita train --help`");
  expect_refused("compile m.onnx --optput=b", "unknown option '--optput'; the nearest is '--output'");
}

// Threads that wait are to sleep soon, unless the user says how they wait.
TEST_F(CommandLine, ThreadsThatWait) {
  const std::string shown = "OMP_DISPLAY_ENV=verbose " + partita_program() + " --version 2>&1 | grep GOMP_SPINCOUNT | ";
  Outcome o = run_command("unset GOMP_SPINCOUNT OMP_WAIT_POLICY; " + shown + "tail -n 1 | tr -cd 0-9");
  const long turns = std::atol(o.text.c_str());  // of 150 microseconds
  EXPECT_GT(turns, 500) << o.text;
  EXPECT_LT(turns, 100000) << o.text;
  EXPECT_THAT(run_command("export GOMP_SPINCOUNT=1234; " + shown + "cat").text, HasSubstr("1234"));
}

// What may be said several times takes one word each time, so that the model may follow.
TEST_F(CommandLine, OrderOfWords) {
  for (const char* before : {"--pin data=1", "--like ddp", "--metrics m.jsonl"}) {
    Outcome o = run_command("cd " + folder_ / "." + " && " + partita_program() + " train " + before + " model.onnx" +
                            " --train train.yaml --data data.npz --quiet --steps 1");
    EXPECT_EQ(o.code, 0) << before << o.text;
  }
  folder_.write("cluster.yaml", "device: A100-80GB\n");
  Outcome o = run_command(partita_program() + " plan --cluster " + folder_ / "cluster.yaml" + " --pin data=1 " +
                          folder_ / "model.onnx" + " --train " + folder_ / "train.yaml" + " --quiet -o " +
                          folder_ / "plan.json");
  EXPECT_EQ(o.code, 0) << o.text;
}

// The place of what is written at the end is looked at before the first step; a device is not replaced by a file.
TEST_F(CommandLine, TargetsAreCheckedFirst) {
  const std::string pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const char* flag : {"--save ", "--save-gradients ", "--profile "}) {
    Outcome o = train(cat("--steps 1 ", flag, folder_ / "no/such/file"));
    EXPECT_EQ(o.code, 2) << o.text;
    EXPECT_THAT(o.text, AllOf(HasSubstr("cannot create"), HasSubstr("no/such/file"), Not(HasSubstr("step 1"))));
    o = train(cat("--steps 1 ", flag, pipe));
    EXPECT_EQ(o.code, 2) << o.text;
    EXPECT_THAT(o.text, AllOf(HasSubstr("device or pipe"), Not(HasSubstr("step 1"))));
    EXPECT_TRUE(std::filesystem::is_fifo(pipe));
  }
}

TEST_F(CommandLine, FewSamples) {
  EXPECT_THAT(train("--steps 2").text, AllOf(HasSubstr("run at most 1 steps"), HasSubstr("--shuffle")));
  EXPECT_EQ(train("--steps 2 --shuffle --quiet").code, 0);
  // Without --steps there is not one batch to train on; that is no success.
  std::string recipe = kRecipe;
  folder_.write("train.yaml", recipe.replace(recipe.find("global: 4"), 9, "global: 8"));
  Outcome o = train("");
  EXPECT_EQ(o.code, 2) << o.text;
  EXPECT_THAT(o.text, HasSubstr("give at least 8"));
}

TEST_F(CommandLine, PatternsThatMatchNothing) {
  folder_.write(
      "train.yaml",
      "loss: {kind: mse, output: y, target: target}\nbatch: {global: 4}\n"
      "optimizer: {kind: sgd, no_decay: ['*.bais', 'w*']}\nfrozen: [ww]\ntrainable: ['w*', nothing_like_it]\n");
  Outcome o = train("--steps 1 --quiet");
  EXPECT_EQ(o.code, 0) << o.text;
  EXPECT_THAT(o.text, AllOf(HasSubstr("frozen: no initializer has a name that matches 'ww'; the nearest is 'w'"),
                            HasSubstr("trainable: no initializer has a name that matches 'nothing_like_it'\n"),
                            HasSubstr("no_decay: no parameter has a name that matches '*.bais'")));
  EXPECT_THAT(o.text, Not(HasSubstr("'w*'")));
}

}  // namespace
}  // namespace partita
