// More tensor ranks than key heads: query heads are split over all of them, key heads over as many as there are, and
// the ranks that share one each compute it.
#include <gtest/gtest.h>

#include <fstream>

#include "nlohmann/json.hpp"
#include "tests/support/command.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

void make_model(const TempFolder& out) {
  Outcome made = run_command(partita_program() +
                             " model gpt --layers 2 --hidden 64 --heads 8 --kv-heads 2 --ffn 256 --gated-mlp --norm "
                             "rmsnorm --positions rotary --no-bias --no-tied --vocab 128 --seq 16 --quiet "
                             "--with-weights -o " +
                             (out / "model.onnx"));
  ASSERT_EQ(made.code, 0) << made.text;
}

TEST(GroupedHeads, OverMoreRanksThanKeyHeads_NothingIsGathered) {
  TempFolder out;
  make_model(out);
  out.write("train.yaml",
            "loss: {kind: output, output: loss}\noptimizer: {kind: adamw}\nbatch: {global: 8}\n"
            "bind: {batch: 8}\n");
  for (int ranks : {4, 8}) {
    std::string bundle = out / ("bundle" + std::to_string(ranks)), tensor = std::to_string(ranks);
    Outcome compiled = run_command(partita_program() + " compile " + (out / "model.onnx") + " --train " +
                                   (out / "train.yaml") + " --quiet --pin tensor=" + tensor + " -o " + bundle);
    ASSERT_EQ(compiled.code, 0) << compiled.text;
    std::ifstream file(bundle + "/manifest.json");
    nlohmann::json mesh = nlohmann::json::parse(file)["mesh"];
    EXPECT_EQ(mesh, (nlohmann::json{{"tensor0", 2}, {"tensor1", ranks / 2}}));
    std::string program = TempFolder::read(bundle + "/verify/rank.ir");
    EXPECT_EQ(program.find("all_gather"), std::string::npos);
    EXPECT_EQ(program.find("reduce_scatter"), std::string::npos);
    // Rows of the projections: all ranks divide the queries', two the keys'.
    EXPECT_NE(
        program.find("f32[" + std::to_string(64 / ranks) + ",64] parameter \"transformer.h.0.attn.q_proj.weight\""),
        std::string::npos);
    EXPECT_NE(program.find("f32[8,64] parameter \"transformer.h.0.attn.k_proj.weight\""), std::string::npos);
    Outcome proved = run_command(partita_program() + " verify " + bundle + " --numeric --threads 1");
    EXPECT_EQ(proved.code, 0) << proved.text;
  }
}

// The ranks that share a key head divide positions, not the rows of all samples, which are no two halves here.
TEST(GroupedHeads, OfThreeSamplesByPositions_AreProved) {
  TempFolder out;
  make_model(out);
  out.write("train.yaml",
            "loss: {kind: output, output: loss}\noptimizer: {kind: adamw}\nbatch: {global: 3}\n"
            "bind: {batch: 3}\n");
  Outcome compiled =
      run_command(partita_program() + " compile " + (out / "model.onnx") + " --train " + (out / "train.yaml") +
                  " --quiet --pin tensor=4 --pin sequence_parallel=true -o " + (out / "bundle"));
  ASSERT_EQ(compiled.code, 0) << compiled.text;
  Outcome proved = run_command(partita_program() + " verify " + (out / "bundle") + " --threads 1");
  EXPECT_EQ(proved.code, 0) << proved.text;
}

}  // namespace
}  // namespace partita
