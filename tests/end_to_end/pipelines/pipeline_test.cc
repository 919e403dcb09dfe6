// Pipelines through the command line: every schedule and mixture equals one rank; checkpoints go between layouts; the
// executable picks its stage.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/cat.h"
#include "nlohmann/json.hpp"
#include "tests/support/command.h"
#include "tests/support/losses.h"
#include "tests/support/temp_folder.h"
#include "tests/support/tensor_difference.h"

namespace partita {
namespace {

// Chunks of interleaved stages that begin amid a block: residuals go from one chunk of a stage to another of the same
// stage, their gradients over several stages.
constexpr const char* kFourChunks =
    "--pin schedule=interleaved --pin 'cuts=[transformer.h.0.attn.c_attn.*, transformer.h.0.attn.c_proj.*, "
    "transformer.h.1.*]'";
constexpr const char* kSixChunks =
    "--pin schedule=interleaved --pin interleave=3 --pin 'cuts=[transformer.h.0.attn.c_attn.*, "
    "transformer.h.0.attn.c_proj.*, transformer.h.0.mlp.c_fc.*, transformer.h.0.mlp.c_proj.*, transformer.h.1.*]'";

class Pipeline : public testing::Test {
 protected:
  std::string train(const std::string& flags) const {
    return partita_program() + " train " + model_ + "/model.onnx --train " + model_ + "/train.yaml --data " + data_ +
           " --quiet --threads 1 --steps 3 " + flags;
  }
  std::string results(const std::string& name) {
    return " --metrics " + (out_ / (name + ".jsonl")) + " --save " + (out_ / (name + ".st")) + " --save-gradients " +
           (out_ / (name + ".grad.st"));
  }
  void expect_as_alone(const std::string& name) {
    std::vector<double> alone = read_losses(out_ / "alone.jsonl"), found = read_losses(out_ / (name + ".jsonl"));
    ASSERT_EQ(found.size(), alone.size()) << name;
    for (size_t k = 0; k < alone.size(); ++k) EXPECT_NEAR(found[k], alone[k], 1e-5 * std::abs(alone[k])) << name;
    EXPECT_LT(tensor_difference(out_ / (name + ".grad.st"), out_ / "alone.grad.st"), 1e-5) << name;
    EXPECT_LT(tensor_difference(out_ / (name + ".st"), out_ / "alone.st"), 1e-4) << name;
  }
  void SetUp() override {
    Outcome alone = run_command(train(results("alone")));
    ASSERT_EQ(alone.code, 0) << alone.text;
  }

  std::string text() {
    std::string s;
    for (int k = 0; k < 4000; ++k) s += "line " + std::to_string(k * k % 977) + " of a text that repeats\n";
    return out_.write("text.bin", s);
  }

  TempFolder out_;
  const std::string model_ = std::string(PARTITA_TEST_DATA) + "/gpt2", data_ = text();
};

TEST_F(Pipeline, EveryScheduleAndMixtureEqualsOneRank) {
  int number = 0;
  for (const std::string& flags : std::vector<std::string>{
           "--ranks 2 --pin pipeline=2 --pin micro_batch=1 --pin schedule=gpipe",
           "--ranks 2 --pin pipeline=2 --pin micro_batch=1 --pin schedule=1f1b",
           "--ranks 2 --pin pipeline=2 --pin micro_batch=2 --pin schedule=zero_bubble",
           "--ranks 2 --pin pipeline=2",
           "--ranks 4 --pin pipeline=4 --pin micro_batch=1",
           "--ranks 4 --pin pipeline=4 --pin micro_batch=1 --pin schedule=gpipe",
           "--ranks 4 --pin pipeline=4 --pin micro_batch=2 --pin schedule=zero_bubble",
           "--ranks 8 --pin pipeline=2 --pin tensor=2 --pin data=2 --pin micro_batch=1",
           "--ranks 4 --pin pipeline=2 --pin data=2 --pin micro_batch=1",
           "--ranks 4 --pin pipeline=2 --pin tensor=2 --pin micro_batch=2",
           "--ranks 4 --pin pipeline=2 --pin data=2 --pin zero=1 --pin micro_batch=2",
           "--ranks 4 --pin pipeline=2 --pin data=2 --pin zero=3 --pin micro_batch=2",
           "--ranks 2 --pin pipeline=2 --pin micro_batch=1 --pin schedule=interleaved",
           "--ranks 4 --pin pipeline=2 --pin data=2 --pin zero=1 --pin micro_batch=1 --pin schedule=interleaved",
           "--ranks 4 --pin pipeline=2 --pin tensor=2 --pin micro_batch=2 --pin schedule=interleaved",
           "--ranks 4 --pin pipeline=4 --pin micro_batch=1 --pin schedule=interleaved --pin interleave=3",
           cat("--ranks 2 --pin pipeline=2 --pin micro_batch=1 ", kFourChunks),
           cat("--ranks 4 --pin pipeline=2 --pin data=2 --pin micro_batch=1 ", kSixChunks),
           "--ranks 2 --pin pipeline=2 --pin micro_batch=2 --pin cuts=transformer.h.0.mlp.c_proj.*",
           "--ranks 3 --pin pipeline=3 --pin micro_batch=1 --pin 'cuts=[transformer.h.0.mlp.*, transformer.ln_f.*]'"}) {
    std::string name = "run" + std::to_string(number++);
    Outcome run = run_command(train(flags + results(name)));
    ASSERT_EQ(run.code, 0) << flags << ": " << run.text;
    expect_as_alone(name);
  }
}

// What crosses is laid out anew, activations and gradients, and so is the tied embedding and its gradient's sum.
TEST_F(Pipeline, StagesThatDivideDifferentThingsEqualOneRank) {
  int number = 0;
  for (const std::string& flags : std::vector<std::string>{
           "--pin 'stages=[{data: 2}, {tensor: 2}]' --pin micro_batch=1",
           "--pin 'stages=[{data: 2}, {tensor: 2}]' --pin micro_batch=1 --pin schedule=gpipe",
           "--pin 'stages=[{tensor: 2}, {data: 2}]' --pin micro_batch=2",
           "--pin 'stages=[{tensor: 2}, {data: 2}]' --pin micro_batch=2 --pin schedule=zero_bubble",
           "--pin 'stages=[{data: 4}, {tensor: 4}]' --pin micro_batch=1 --pin schedule=gpipe --pin zero=1",
           "--pin 'stages=[{data: 4}, {data: 2, tensor: 2}]' --pin micro_batch=1 --pin zero=1",
           "--pin 'stages=[{data: 2, tensor: 2}, {data: 4}]' --pin micro_batch=1 --pin zero=3",
           "--pin 'stages=[{data: 2, tensor: 2}, {data: 4}]' --pin micro_batch=2 --pin zero=2",
           "--pin 'stages=[{data: 2}, {context: 2}]' --pin micro_batch=1",
           "--pin 'stages=[{data: 2, tensor: 2}, {data: 4}]' --pin sequence_parallel=true --pin micro_batch=1",
           "--pin 'stages=[{data: 2}, {tensor: 2}]'",
           "--pin 'stages=[{data: 2}, {tensor: 2}]' --pin 'transformer.h.2.mlp.c_fc.weight={out: tensor}'",
           "--pin 'stages=[{tensor: 2}, {data: 2}]' --pin micro_batch=1 --pin schedule=interleaved",
           cat("--pin 'stages=[{data: 2}, {tensor: 2}]' --pin micro_batch=1 ", kSixChunks),
           "--pin 'stages=[{data: 2}, {tensor: 2}, {data: 2}]' --pin micro_batch=1 "
           "--pin 'cuts=[transformer.h.0.mlp.*, transformer.ln_f.*]'"}) {
    std::string name = "stages" + std::to_string(number++);
    Outcome run = run_command(train(flags + results(name)));
    ASSERT_EQ(run.code, 0) << flags << ": " << run.text;
    expect_as_alone(name);
  }
}

// Parts are put together and cut in the messages; sums over all stages count each rank's share once.
TEST_F(Pipeline, StagesOfDifferentSizesEqualOneRank) {
  int number = 0;
  for (const std::string& flags : std::vector<std::string>{
           "--pin 'stages=[{data: 4}, {data: 2}]' --pin micro_batch=1",
           "--ranks 3 --pin 'stages=[{tensor: 2}, {data: 1}]' --pin micro_batch=2 --pin schedule=gpipe",
           "--ranks 5 --pin 'stages=[{data: 1}, {data: 2, tensor: 2}]' --pin micro_batch=1 --pin schedule=zero_bubble",
           "--pin 'stages=[{data: 2}, {data: 4}]' --pin micro_batch=1 --pin zero=1",
           "--pin 'stages=[{data: 4}, {data: 2}]' --pin micro_batch=1 --pin zero=2",
           "--pin 'stages=[{data: 2, tensor: 2}, {data: 2}]' --pin micro_batch=2 --pin zero=3",
           "--pin 'stages=[{data: 2}, {data: 1, tensor: 4}]' --pin micro_batch=1 --pin sequence_parallel=true",
           "--pin 'stages=[{data: 1}, {data: 1, context: 2}]' --pin micro_batch=1",
           "--pin 'stages=[{data: 2}, {data: 1, tensor: 3}]' --pin micro_batch=2",
           "--pin 'stages=[{data: 4}, {data: 1}]' --pin micro_batch=1 --pin schedule=interleaved",
           cat("--pin 'stages=[{data: 1}, {data: 2}]' --pin micro_batch=1 ", kSixChunks),
           "--pin 'stages=[{data: 1}, {data: 2, tensor: 2}, {data: 2}]' --pin micro_batch=1 "
           "--pin 'cuts=[transformer.h.0.mlp.*, transformer.ln_f.*]'",
           "--pin 'stages=[{data: 2}, {data: 1}]'"}) {
    std::string name = "sizes" + std::to_string(number++);
    Outcome run = run_command(train(flags + results(name)));
    ASSERT_EQ(run.code, 0) << flags << ": " << run.text;
    expect_as_alone(name);
  }
}

TEST_F(Pipeline, BundleOfStagesThatDivideDifferentThingsIsProvedAndRuns) {
  const std::string bundle = out_ / "bundle";
  Outcome compiled = run_command(partita_program() + " compile " + model_ + "/model.onnx --train " + model_ +
                                 "/train.yaml --quiet --keep-gradients --pin 'stages=[{data: 2}, {tensor: 2}]' "
                                 "--pin micro_batch=1 -o " +
                                 bundle);
  ASSERT_EQ(compiled.code, 0) << compiled.text;
  nlohmann::json manifest = nlohmann::json::parse(TempFolder::read(bundle + "/manifest.json"));
  EXPECT_EQ(manifest["ranks"], 4);
  EXPECT_EQ(manifest["mesh"], (nlohmann::json{{"pipeline", 2}, {"data/tensor", 2}}));
  EXPECT_EQ(manifest["stages"][0]["mesh"]["data"], 2);
  EXPECT_EQ(manifest["stages"][1]["mesh"]["tensor"], 2);
  Outcome sound = run_command(partita_program() + " verify " + bundle);
  EXPECT_EQ(sound.code, 0) << sound.text;
  const std::string flags = " --data " + data_ + " --quiet --threads 1 --steps 3";
  Outcome processes = run_command(partita_program() + " run " + bundle + " --processes" + flags + results("tcp"));
  ASSERT_EQ(processes.code, 0) << processes.text;
  expect_as_alone("tcp");
  if (run_command("mpirun --version").code != 0) GTEST_SKIP() << "mpirun is not installed";
  Outcome mpi = run_command("OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe -n 4 " +
                            bundle + "/rank" + flags + results("mpi"));
  ASSERT_EQ(mpi.code, 0) << mpi.text;
  expect_as_alone("mpi");
}

// Interleaved, two stages have two ways and several distances of messages between them, each in a channel of its own.
TEST_F(Pipeline, ExecutablesPickTheirStage) {
  std::string bundle = out_ / "bundle";
  Outcome compiled =
      run_command(partita_program() + " compile " + model_ + "/model.onnx --train " + model_ +
                  "/train.yaml --quiet --keep-gradients --ranks 2 --pin pipeline=2 --pin micro_batch=1 " + kSixChunks +
                  " -o " + bundle);
  ASSERT_EQ(compiled.code, 0) << compiled.text;
  Outcome sound = run_command(partita_program() + " verify " + bundle);
  EXPECT_EQ(sound.code, 0) << sound.text;
  std::string flags = " --data " + data_ + " --quiet --threads 1 --steps 3";
  Outcome processes = run_command(partita_program() + " run " + bundle + " --processes" + flags + results("tcp"));
  ASSERT_EQ(processes.code, 0) << processes.text;
  expect_as_alone("tcp");
  if (run_command("mpirun --version").code != 0) GTEST_SKIP() << "mpirun is not installed";
  Outcome mpi = run_command("OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe -n 2 " +
                            bundle + "/rank" + flags + results("mpi"));
  ASSERT_EQ(mpi.code, 0) << mpi.text;
  expect_as_alone("mpi");
}

// Saved by stages, gone on with by one rank, and the other way round.
TEST_F(Pipeline, CheckpointsGoBetweenLayouts) {
  const std::string stages = "--ranks 2 --pin pipeline=2 --pin micro_batch=2",
                    interleaved = stages + " --pin schedule=interleaved --pin interleave=2",
                    differ = "--pin 'stages=[{data: 2}, {tensor: 2}]' --pin zero=1 --pin micro_batch=2";
  int number = 0;
  for (const auto& [first, then] : {std::pair<std::string, std::string>{stages, ""},
                                    {"", stages},
                                    {interleaved, stages},
                                    {stages, interleaved},
                                    {differ, ""},
                                    {stages, differ}}) {
    std::string folder = out_ / ("checkpoint" + std::to_string(number++));
    std::string begin = train(first + " --checkpoint " + folder), rest = begin;
    begin.replace(begin.find("--steps 3"), 9, "--steps 2");
    Outcome saved = run_command(begin);
    ASSERT_EQ(saved.code, 0) << saved.text;
    Outcome resumed =
        run_command(train(then + " --checkpoint " + folder + " --resume --save " + (out_ / "resumed.st")));
    ASSERT_EQ(resumed.code, 0) << resumed.text;
    EXPECT_LT(tensor_difference(out_ / "resumed.st", out_ / "alone.st"), 1e-4) << first;
  }
}

TEST_F(Pipeline, ManifestHasTheStagesMemory) {
  auto memory = [&](const std::string& schedule) {
    std::string bundle = out_ / schedule;
    Outcome o =
        run_command(partita_program() + " compile " + model_ + "/model.onnx --train " + model_ +
                    "/train.yaml --quiet --ranks 2 --pin pipeline=2 --pin micro_batch=1 --pin schedule=" + schedule +
                    " -o " + bundle);
    EXPECT_EQ(o.code, 0) << o.text;
    return nlohmann::json::parse(TempFolder::read(bundle + "/manifest.json"))["stages"];
  };
  nlohmann::json gpipe = memory("gpipe"), one = memory("1f1b");
  ASSERT_EQ(one.size(), 2u);
  // Eight micro-batches in flight everywhere, against two and one.
  for (size_t s = 0; s < 2; ++s) EXPECT_LT(3 * one[s]["arena"].get<int64_t>(), gpipe[s]["arena"].get<int64_t>());
}

TEST_F(Pipeline, RefusesWhatCannotBe) {
  for (const auto& [flags, said] : {
           std::pair{"--ranks 512 --pin pipeline=512", "use fewer stages"},
           {"--ranks 3 --pin pipeline=2", "multiple of 2 ranks"},
           {"--ranks 3 --pin pipeline=3 --pin micro_batch=1 --pin schedule=interleaved",
            "8 micro-batches a step over 3 stages"},
           {"--ranks 2 --pin pipeline=2 --pin interleave=2 --pin schedule=1f1b", "need schedule: interleaved"},
           {"--ranks 2 --pin pipeline=2 --pin cuts=transformer.h.77.*", "'transformer.h.77.*': no forward node reads"},
           {"--ranks 2 --pin pipeline=2 --pin cuts=lm_head.weight", "leaves nothing to the stage before"},
           {"--ranks 3 --pin pipeline=3 --pin 'cuts=[transformer.h.1.*, transformer.h.0.mlp.*]'",
            "in the order of the"},
           {"--ranks 3 --pin pipeline=3 --pin cuts=transformer.h.1.*", "expected 2 cuts"},
           {"--ranks 7 --pin 'stages=[{data: 4}, {tensor: 2}]'",
            "stage 1 (tensor 2) leaves its data axis open: expected a multiple of 2 ranks beside the 4 of the other "
            "stages, found 3 of 7; use 6 or 8 ranks, or say the stage's data axis"},
           {"--ranks 7 --pin 'stages=[{tensor: 2}, {}]'",
            "stages 0 (tensor 2) and 1 (one rank) leave their data axis open, so they have equally many ranks: "
            "expected a multiple of 4 ranks, found 7; use 4 or 8 ranks, or say each stage's data axis"},
           {"--ranks 6 --pin 'stages=[{data: 4}, {data: 1}]'",
            "2 stages take 5 ranks, and --ranks says 6; expected the same number"},
           {"--ranks 4 --pin 'stages=[{data: 1}, {tensor: 2}, {}]'",
            "expected a multiple of 4 ranks beside the 1 of the other stages, found 3 of 4; use 5 ranks"},
           {"--pin 'stages=[{data: 4}, {tensor: 3}]'", "takes a multiple of 3 ranks, and 4 are on the largest stage"},
           {"--pin pipeline=3 --pin 'stages=[{data: 2}, {tensor: 2}]'", "2 stages, and pin pipeline: 3"},
           {"--pin 'stages=[{data: 2}, {tensr: 2}]'", "unknown key 'tensr'"},
           {"--pin 'stages=[{data: 6}, {data: 3, tensor: 2}]'", "cannot divide a global batch of 8"},
       }) {
    Outcome refused = run_command(train(flags));
    EXPECT_EQ(refused.code, 2) << flags;
    EXPECT_NE(refused.text.find(said), std::string::npos) << refused.text;
  }
}

}  // namespace
}  // namespace partita
