// What ZeRO is for: gradients that are summed over ranks and micro-batches are never all there as a whole.
#include <gtest/gtest.h>

#include "nlohmann/json.hpp"
#include "tests/support/command.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

constexpr double kParameterBytes = 152213504 * 4.0;

constexpr const char* kRandomAdamW = "optimizer: {kind: adamw}\ninit: [{match: '*', normal: {std: 0.02}}]\n";

class ShardMemory : public testing::Test {
 protected:
  void make(const std::string& model, const std::string& recipe) {
    const Outcome made = run_partita("model " + model + " --quiet -o " + (out_ / "model.onnx"));
    ASSERT_EQ(made.code, 0) << made.text;
    out_.write("train.yaml", recipe);
  }
  // The bundle's manifest.
  nlohmann::json compile(const std::string& flags) {
    const Outcome made = run_partita("compile " + (out_ / "model.onnx") + " --train " + (out_ / "train.yaml") +
                                     " --quiet " + flags + " -o " + (out_ / "bundle"));
    EXPECT_EQ(made.code, 0) << made.text;
    return made.code == 0 ? nlohmann::json::parse(TempFolder::read(out_ / "bundle/manifest.json")) : nlohmann::json();
  }
  void expect_proved() {
    const Outcome verified = run_partita("verify " + (out_ / "bundle"));
    EXPECT_EQ(verified.code, 0) << verified.text;
  }
  // Working memory of a rank of four, of a model with far more parameters than activations.
  double arena_bytes(const std::string& pins, int positions = 32) {
    make("gpt --layers 12 --hidden 1024 --heads 8 --vocab 1000 --seq " + std::to_string(positions),
         std::string("batch: {global: 8}\n") + kRandomAdamW);
    return compile("--ranks 4 " + pins)["memory_bytes"]["arena"].get<double>();
  }
  TempFolder out_;
};

TEST_F(ShardMemory, AGradientIsShardedBeforeTheNextOnesAreThere) {
  for (const char* precision : {"fp32", "bf16"}) {
    for (const char* micro_batch : {"1", "2"}) {  // two micro-batches, and one
      SCOPED_TRACE(std::string(precision) + ", micro-batch " + micro_batch);
      EXPECT_LT(arena_bytes(std::string("--pin data=4 --pin zero=3 --pin micro_batch=") + micro_batch +
                            " --precision " + precision),
                0.5 * kParameterBytes);
    }
  }
}

// Sums over micro-batches are summed over ranks where they are, and that is proved.
TEST_F(ShardMemory, SumsOfGradientsAreReducedInPlace) {
  EXPECT_LT(arena_bytes("--pin data=4 --pin micro_batch=1"), 0.5 * kParameterBytes);
  expect_proved();
}

// Beside 16-bit copies of all parameters activations take the place of the parts that the copies were gathered from.
TEST_F(ShardMemory, PartsOfGatheredParametersAreNotKept) {
  const double arena = arena_bytes("--pin data=4 --pin zero=1 --pin micro_batch=1 --precision bf16", 256);
  EXPECT_LT(arena, 0.75 * kParameterBytes);
}

// Where few weights are trained, the others lie in parts along the tensor axis all the same.
TEST_F(ShardMemory, FrozenWeightsLieAlongTheTensorAxis) {
  make(
      "gpt --layers 2 --hidden 256 --heads 4 --vocab 1024 --seq 16 --gated-mlp --no-bias --no-tied --norm rmsnorm "
      "--positions rotary --with-weights",
      "batch: {global: 2}\noptimizer: {kind: adamw}\ntrainable: ['*.attn.proj.weight']\n");
  const auto state_bytes = [&](const std::string& flags) {
    return compile(flags)["memory_bytes"]["state"].get<double>();
  };
  const double alone = state_bytes("--ranks 1");
  EXPECT_LT(state_bytes("--ranks 4 --pin tensor=4"), 0.35 * alone);
  expect_proved();
}

// Of a vocabulary that the tensor axis divides, no rank has all rows of a gradient (8.2 MB) nor all one-hot classes of
// its labels (8.2 MB), which are samples of a run that ranks and micro-batches share.
TEST_F(ShardMemory, ADividedVocabularyIsNeverWhole) {
  make("gpt --layers 1 --hidden 64 --heads 4 --vocab 32000 --seq 64 --no-tied",
       std::string("batch: {global: 16}\n") + kRandomAdamW);
  for (const char* sequence : {"false", "true"}) {
    SCOPED_TRACE(sequence);
    const auto manifest =
        compile(std::string("--pin data=2 --pin tensor=4 --pin micro_batch=1 --pin sequence_parallel=") + sequence);
    EXPECT_LT(manifest["memory_bytes"]["state"].get<double>(), 20e6);
    EXPECT_LT(manifest["memory_bytes"]["arena"].get<double>(), 8e6);
    expect_proved();
  }
}

// A slot of an interleaved pipeline holds what one chunk's blocks were given: neither what was sent on, nor the last
// chunk's logits (1 MB) where another chunk has the slot. Messages are of 0.26 MB, in up to 9 slots of 4 chunks.
TEST_F(ShardMemory, SlotsOfChunksHoldWhatIsReadAgain) {
  make("gpt --layers 8 --hidden 256 --heads 4 --vocab 1000 --seq 256",
       std::string("batch: {global: 16}\n") + kRandomAdamW);
  const auto manifest = compile(
      "--pin pipeline=2 --pin schedule=interleaved --pin interleave=4 --pin recompute=full --pin micro_batch=1");
  EXPECT_LT(manifest["stages"][0]["arena"].get<double>(), 10e6);
  EXPECT_LT(manifest["stages"][1]["arena"].get<double>(), 13e6);
}

// Every block adds to one loss that balances its experts, 4 bytes from chunk to chunk of a stage. That keeps none of
// what else a micro-batch leaves in a chunk: slots of whole micro-batches would take 9 MB.
TEST_F(ShardMemory, SlotsAreOfChunksThatShareAValue) {
  make("moe --layers 8 --hidden 128 --heads 4 --experts 4 --top-k 1 --moe-ffn 256 --vocab 100 --seq 64",
       std::string("batch: {global: 16}\nsemantics: {moe: {capacity_factor: 1, group: 1}}\n") + kRandomAdamW);
  const auto manifest = compile("--pin pipeline=2 --pin schedule=interleaved --pin interleave=4 --pin micro_batch=1");
  EXPECT_LT(manifest["stages"][0]["arena"].get<double>(), 6.5e6);
  expect_proved();
}

}  // namespace
}  // namespace partita
