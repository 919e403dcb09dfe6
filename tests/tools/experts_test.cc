// Experts in the spelling that gathers their weights for each token (Hugging Face's Mixtral): no weights are copied.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "nlohmann/json.hpp"
#include "tests/temp_folder.h"
#include "tests/tools/command.h"

namespace partita {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::string trained(const std::string& folder) {
  return folder + "/model.onnx --train " + folder + "/train.yaml --quiet ";
}

// Two layers of [192,192,64] and [192,64,96] copies, 37 MB with their gradients, where the weights take 0.6 MB.
TEST(Experts, WeightsAreNotCopiedForEachToken) {
  const std::string folder = std::string(PARTITA_MODELS) + "/mixtral";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is missing";
  TempFolder out;
  for (const char* pins : {"", "--pin data=2", "--pin tensor=2", "--pin context=2",
                           "--pin pipeline=2 --pin micro_batch=1", "--pin tensor=2 --precision bf16"}) {
    SCOPED_TRACE(pins);
    const Outcome made = run_partita("compile " + trained(folder) + pins + " -o " + (out / "bundle"));
    ASSERT_EQ(made.code, 0) << made.text;
    const json memory = json::parse(TempFolder::read(out / "bundle/manifest.json"))["memory_bytes"];
    EXPECT_LT(memory["arena"].get<double>(), 4e6);
    const Outcome proved = run_partita("verify " + (out / "bundle") + " --numeric --threads 1");
    EXPECT_EQ(proved.code, 0) << proved.text;
  }
}

// Nor are they gathered where the tensor axis divides what is between an expert's two products: both ranks have half of
// each, and sum up the second one's results.
TEST(Experts, TensorAxisDividesEachOfThem) {
  const std::string folder = std::string(PARTITA_MODELS) + "/mixtral";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is missing";
  TempFolder out;
  const Outcome made = run_partita("compile " + trained(folder) + "--pin tensor=2 -o " + (out / "bundle"));
  ASSERT_EQ(made.code, 0) << made.text;
  const std::string program = TempFolder::read(out / "bundle/verify/rank.ir");
  for (const char* part :
       {"= grouped_matmul(", "f32[4,96,64] parameter \"val_262\"", "f32[4,64,48] parameter \"val_271\""})
    EXPECT_THAT(program, HasSubstr(part));
  // The routers' choices are.
  const auto count = [&](const std::string& text) {
    int n = 0;
    for (size_t at = program.find(text); at != std::string::npos; at = program.find(text, at + 1)) ++n;
    return n;
  };
  EXPECT_EQ(count(" = all_gather("), count(" f32[2,96,2] = all_gather("));
}

TEST(Experts, PlansOfTheWholeModelAreLaidOut) {
  const std::string folder = std::string(PARTITA_MODELS) + "/full/mixtral_8x7b";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is missing";
  TempFolder out;
  for (int nodes : {1, 8}) {
    SCOPED_TRACE(nodes);
    out.write("cluster.yaml", "preset: dgx-h100\nnodes: " + std::to_string(nodes) + "\n");
    const Outcome planned =
        run_partita("plan " + trained(folder) + "--cluster " + (out / "cluster.yaml") + " -o " + (out / "plan.json"));
    ASSERT_EQ(planned.code, 0) << planned.text;
    const json plan = json::parse(TempFolder::read(out / "plan.json")), predicted = plan["predicted"];
    EXPECT_TRUE(predicted["fits"].get<bool>());
    ASSERT_EQ(predicted["program_bytes"].size(), plan["stages"].size());
    for (const json& bytes : predicted["program_bytes"]) EXPECT_LT(bytes.get<double>(), 84e9);
    // Of each token, two of eight experts: 12.9 G of 46.7 G parameters are multiplied with, but for the embedding.
    double flops = 0;
    for (const json& unit : plan["units"]) flops += unit["count"].get<double>() * unit["forward_flops"].get<double>();
    EXPECT_NEAR(flops / 4096 / (2 * 12.75e9), 1, 0.1);
    const Outcome told = run_partita("explain " + (out / "plan.json"));
    EXPECT_THAT(told.text, HasSubstr("the rows of each of 8 are multiplied together; no weights are copied"));
  }
}

}  // namespace
}  // namespace partita
