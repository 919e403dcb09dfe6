// Micro-batches that take turns are computed and added up as one after the other: every bit is the same.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/pinned_training.h"

namespace partita {
namespace {

class OverlapMicroBatches : public PinnedTraining {
 protected:
  void expect_same_bits(int ranks, const std::string& pins, const std::vector<int>& overlapped) {
    const auto in_turns = [&](int n) {
      return bits(ranks, pins + " --pin overlap_micro_batches=" + std::to_string(n));
    };
    const TrainingBits one = in_turns(1);
    for (int n : overlapped) EXPECT_EQ(in_turns(n), one) << pins << ", " << n << " in turns";
  }
};

constexpr const char* kGpt = "gpt --layers 2 --hidden 32 --heads 4 --vocab 64 --seq 16";
constexpr const char* kRecipe =
    "batch: {global: 10, micro: 2}\noptimizer: {kind: adamw, lr: 0.001}\nclip_grad_norm: 1\ndata: {kind: synthetic}\n";

// Five micro-batches: the last group is smaller.
TEST_F(OverlapMicroBatches, TensorParallelSumsHaveTheSameBits) {
  make(kGpt, kRecipe);
  expect_same_bits(2, "--pin tensor=2", {2, 3});
  expect_same_bits(2, "--pin tensor=2 --pin sequence_parallel=true", {2});
  expect_proved(2, "--pin tensor=2 --pin sequence_parallel=true --pin overlap_micro_batches=2");
  // Large enough that backward computes what it reads of norms again.
  make("gpt --layers 1 --hidden 128 --heads 2 --vocab 64 --seq 128", kRecipe);
  expect_proved(2, "--pin tensor=2 --pin sequence_parallel=true --pin overlap_micro_batches=2");
}

// Sums start within the last micro-batch's backward part, when the others have run the rest of that part.
TEST_F(OverlapMicroBatches, SumsBesideTheLastOneHaveMemoryOfTheirOwn) {
  make("bert --layers 2 --hidden 32 --heads 2 --vocab 200 --seq 8",
       "batch: {global: 8, micro: 1}\noptimizer: {kind: sgd, lr: 0.1}\ndata: {kind: synthetic}\n");
  expect_proved(8,
                "--pin tensor=8 --pin sequence_parallel=true --pin overlap_micro_batches=3 --pin recompute=none --pin "
                "bucket_bytes=500");
}

TEST_F(OverlapMicroBatches, StagesAndGathersHaveTheSameBits) {
  make(kGpt, "batch: {global: 8, micro: 1}\noptimizer: {kind: adamw, lr: 0.001}\ndata: {kind: synthetic}\n");
  expect_same_bits(4, "--pin tensor=2 --pin pipeline=2", {2});
  expect_same_bits(4, "--pin tensor=2 --pin zero=3", {2});
  for (const char* schedule : {"interleaved", "zero_bubble"})
    expect_proved(4, std::string("--pin tensor=2 --pin pipeline=2 --pin overlap_micro_batches=2 --pin schedule=") +
                         schedule + (schedule[0] == 'i' ? " --pin interleave=1" : ""));
}

TEST_F(OverlapMicroBatches, SaysWhereNothingIsWaitedFor) {
  make(kGpt, kRecipe);
  const Outcome made =
      run_partita(command("compile", 5, "--pin data=5 --pin overlap_micro_batches=2") + " -o " + (out_ / "bundle"));
  EXPECT_EQ(made.code, 2) << made.text;  // one micro-batch
  const Outcome two = run_partita(command("compile", 1, "--pin overlap_micro_batches=2") + " -o " + (out_ / "bundle"));
  EXPECT_EQ(two.code, 0) << two.text;
  EXPECT_NE(two.text.find("one after the other"), std::string::npos) << two.text;
}

TEST_F(OverlapMicroBatches, NeedsTwoMicroBatches) {
  make(kGpt, "batch: {global: 4, micro: 4}\noptimizer: {kind: adamw, lr: 0.001}\ndata: {kind: synthetic}\n");
  const Outcome one = run_partita(command("compile", 2, "--pin tensor=2 --pin overlap_micro_batches=2") +
                                  " --quiet -o " + (out_ / "bundle"));
  EXPECT_EQ(one.code, 2);
  EXPECT_NE(one.text.find("overlap_micro_batches"), std::string::npos) << one.text;
}

}  // namespace
}  // namespace partita
