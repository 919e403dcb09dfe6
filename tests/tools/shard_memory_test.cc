// What ZeRO is for: gradients that are summed over ranks and micro-batches are never all there as a whole.
#include <gtest/gtest.h>

#include "nlohmann/json.hpp"
#include "tests/temp_folder.h"
#include "tests/tools/command.h"

namespace partita {
namespace {

constexpr double kParameterBytes = 152213504 * 4.0;

// Working memory of a rank of four, of a model with far more parameters than activations.
double arena_bytes(TempFolder& out, const std::string& pins, int positions = 32) {
  const std::string model = partita_program() + " model gpt --layers 12 --hidden 1024 --heads 8 --vocab 1000 --seq " +
                            std::to_string(positions) + " --quiet -o " + (out / "model.onnx");
  EXPECT_EQ(run_command(model).code, 0);
  out.write("train.yaml",
            "batch: {global: 8}\noptimizer: {kind: adamw, lr: 0.001}\ninit: [{match: '*', normal: {std: 0.02}}]\n");
  const Outcome made = run_command(partita_program() + " compile " + (out / "model.onnx") + " --train " +
                                   (out / "train.yaml") + " --ranks 4 " + pins + " -o " + (out / "bundle"));
  EXPECT_EQ(made.code, 0) << made.text;
  if (made.code != 0) return 0;
  const auto manifest = nlohmann::json::parse(TempFolder::read(out / "bundle/manifest.json"));
  return manifest["memory_bytes"]["arena"].get<double>();
}

TEST(ShardMemory, AGradientIsShardedBeforeTheNextOnesAreThere) {
  TempFolder out;
  for (const char* precision : {"fp32", "bf16"}) {
    for (const char* micro_batch : {"1", "2"}) {  // two micro-batches, and one
      SCOPED_TRACE(std::string(precision) + ", micro-batch " + micro_batch);
      EXPECT_LT(arena_bytes(out, std::string("--pin data=4 --pin zero=3 --pin micro_batch=") + micro_batch +
                                     " --precision " + precision),
                0.5 * kParameterBytes);
    }
  }
}

// Sums over micro-batches are summed over ranks where they are, and that is proved.
TEST(ShardMemory, SumsOfGradientsAreReducedInPlace) {
  TempFolder out;
  EXPECT_LT(arena_bytes(out, "--pin data=4 --pin micro_batch=1"), 0.5 * kParameterBytes);
  const Outcome verified = run_command(partita_program() + " verify " + (out / "bundle"));
  EXPECT_EQ(verified.code, 0) << verified.text;
}

// Beside 16-bit copies of all parameters activations take the place of the parts that the copies were gathered from.
TEST(ShardMemory, PartsOfGatheredParametersAreNotKept) {
  TempFolder out;
  const double arena = arena_bytes(out, "--pin data=4 --pin zero=1 --pin micro_batch=1 --precision bf16", 256);
  EXPECT_LT(arena, 0.75 * kParameterBytes);
}

// Where few weights are trained, the others lie in parts along the tensor axis all the same.
TEST(ShardMemory, FrozenWeightsLieAlongTheTensorAxis) {
  TempFolder out;
  ASSERT_EQ(run_partita("model gpt --layers 2 --hidden 256 --heads 4 --vocab 1024 --seq 16 --gated-mlp --no-bias "
                        "--no-tied --norm rmsnorm --positions rotary --with-weights --quiet -o " +
                        (out / "model.onnx"))
                .code,
            0);
  out.write("train.yaml", "batch: {global: 2}\noptimizer: {kind: adamw}\ntrainable: ['*.attn.proj.weight']\n");
  const auto state_bytes = [&](const std::string& pins) {
    const Outcome made = run_partita("compile " + (out / "model.onnx") + " --train " + (out / "train.yaml") +
                                     " --quiet " + pins + " -o " + (out / "bundle"));
    EXPECT_EQ(made.code, 0) << made.text;
    const auto manifest = nlohmann::json::parse(TempFolder::read(out / "bundle/manifest.json"));
    return manifest["memory_bytes"]["state"].get<double>();
  };
  const double alone = state_bytes("--ranks 1");
  EXPECT_LT(state_bytes("--ranks 4 --pin tensor=4"), 0.35 * alone);
  const Outcome verified = run_partita("verify " + (out / "bundle"));
  EXPECT_EQ(verified.code, 0) << verified.text;
}

// Of a vocabulary that the tensor axis divides, no rank has all rows of a gradient (8.2 MB) nor all one-hot classes of
// its labels (8.2 MB), which are samples of a run that ranks and micro-batches share.
TEST(ShardMemory, ADividedVocabularyIsNeverWhole) {
  TempFolder out;
  ASSERT_EQ(run_partita("model gpt --layers 1 --hidden 64 --heads 4 --vocab 32000 --seq 64 --no-tied --quiet -o " +
                        (out / "model.onnx"))
                .code,
            0);
  out.write("train.yaml", "batch: {global: 16}\noptimizer: {kind: adamw}\ninit: [{match: '*', normal: {std: 0.02}}]\n");
  for (const char* sequence : {"false", "true"}) {
    SCOPED_TRACE(sequence);
    const Outcome made = run_partita("compile " + (out / "model.onnx") + " --train " + (out / "train.yaml") +
                                     " --quiet --pin data=2 --pin tensor=4 --pin micro_batch=1 "
                                     "--pin sequence_parallel=" +
                                     sequence + " -o " + (out / "bundle"));
    ASSERT_EQ(made.code, 0) << made.text;
    const auto manifest = nlohmann::json::parse(TempFolder::read(out / "bundle/manifest.json"));
    EXPECT_LT(manifest["memory_bytes"]["state"].get<double>(), 20e6);
    EXPECT_LT(manifest["memory_bytes"]["arena"].get<double>(), 8e6);
    const Outcome verified = run_partita("verify " + (out / "bundle"));
    EXPECT_EQ(verified.code, 0) << verified.text;
  }
}

// A slot of an interleaved pipeline holds what one chunk's blocks were given: neither what was sent on, nor the last
// chunk's logits (1 MB) where another chunk has the slot. Messages are of 0.26 MB, in up to 9 slots of 4 chunks.
TEST(ShardMemory, SlotsOfChunksHoldWhatIsReadAgain) {
  TempFolder out;
  ASSERT_EQ(run_partita("model gpt --layers 8 --hidden 256 --heads 4 --vocab 1000 --seq 256 --quiet -o " +
                        (out / "model.onnx"))
                .code,
            0);
  out.write("train.yaml", "batch: {global: 16}\noptimizer: {kind: adamw}\ninit: [{match: '*', normal: {std: 0.02}}]\n");
  const Outcome made = run_partita("compile " + (out / "model.onnx") + " --train " + (out / "train.yaml") +
                                   " --quiet --pin pipeline=2 --pin schedule=interleaved --pin interleave=4 "
                                   "--pin recompute=full --pin micro_batch=1 -o " +
                                   (out / "bundle"));
  ASSERT_EQ(made.code, 0) << made.text;
  const auto manifest = nlohmann::json::parse(TempFolder::read(out / "bundle/manifest.json"));
  EXPECT_LT(manifest["stages"][0]["arena"].get<double>(), 10e6);
  EXPECT_LT(manifest["stages"][1]["arena"].get<double>(), 13e6);
}

// Every block adds to one loss that balances its experts, 4 bytes from chunk to chunk of a stage. That keeps none of
// what else a micro-batch leaves in a chunk: slots of whole micro-batches would take 9 MB.
TEST(ShardMemory, SlotsAreOfChunksThatShareAValue) {
  TempFolder out;
  ASSERT_EQ(run_partita("model moe --layers 8 --hidden 128 --heads 4 --experts 4 --top-k 1 --moe-ffn 256 --vocab 100 "
                        "--seq 64 --quiet -o " +
                        (out / "model.onnx"))
                .code,
            0);
  out.write("train.yaml",
            "batch: {global: 16}\noptimizer: {kind: adamw}\nsemantics: {moe: {capacity_factor: 1, group: 1}}\n"
            "init: [{match: '*', normal: {std: 0.02}}]\n");
  const Outcome made = run_partita("compile " + (out / "model.onnx") + " --train " + (out / "train.yaml") +
                                   " --quiet --pin pipeline=2 --pin schedule=interleaved --pin interleave=4 "
                                   "--pin micro_batch=1 -o " +
                                   (out / "bundle"));
  ASSERT_EQ(made.code, 0) << made.text;
  const auto manifest = nlohmann::json::parse(TempFolder::read(out / "bundle/manifest.json"));
  EXPECT_LT(manifest["stages"][0]["arena"].get<double>(), 6.5e6);
  const Outcome verified = run_partita("verify " + (out / "bundle"));
  EXPECT_EQ(verified.code, 0) << verified.text;
}

}  // namespace
}  // namespace partita
