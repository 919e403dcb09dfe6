// Experts in the spelling that gathers their weights for each token (Hugging Face's Mixtral): no weights are copied.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "nlohmann/json.hpp"
#include "tests/support/command.h"
#include "tests/support/losses.h"
#include "tests/support/temp_folder.h"

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

// Over the expert axis a rank has some of the experts, with all rows of the axis' ranks, and works on those that chose
// them: the same losses with less of each.
TEST(Experts, ExpertAxisDividesThem_AndTrainsAsOneRank) {
  const std::string folder = std::string(PARTITA_MODELS) + "/mixtral";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is missing";
  TempFolder out;
  const auto losses = [&](const std::string& command) {
    const Outcome o = run_partita(command + " --data " + folder + "/data.npz --steps 4 --threads 1 --quiet --metrics " +
                                  (out / "m.jsonl"));
    EXPECT_EQ(o.code, 0) << o.text;
    std::vector<double> found = read_losses(out / "m.jsonl");
    std::filesystem::remove(out / "m.jsonl");
    return found;
  };
  const std::vector<double> one = losses("train " + trained(folder));
  ASSERT_EQ(one.size(), 4u);
  double whole = 0;
  struct Layout {
    const char* pins;
    double state;  // of the bytes on one rank, at most; experts are two thirds of them
  };
  for (const auto& [pins, state] : {Layout{"", 1},
                                    {"--ranks 2 --pin expert=2", 0.68},
                                    {"--ranks 4 --pin expert=4", 0.51},
                                    {"--ranks 4 --pin expert=2 --pin data=2", 0.68},
                                    {"--ranks 4 --pin expert=2 --pin data=2 --pin zero=1", 0.4},
                                    {"--ranks 4 --pin expert=2 --pin data=2 --pin zero=3", 0.3},
                                    {"--ranks 4 --pin expert=2 --pin tensor=2", 0.4},
                                    {"--ranks 4 --pin expert=2 --pin tensor=2 --pin sequence_parallel=true", 0.4},
                                    {"--ranks 4 --pin expert=2 --pin context=2", 0.68},
                                    {"--ranks 4 --pin expert=2 --pin pipeline=2 --pin micro_batch=1", 0.5},
                                    {"--ranks 2 --pin expert=2 --pin micro_batch=1 --pin recompute=full", 0.9}}) {
    SCOPED_TRACE(pins);
    const Outcome made = run_partita("compile " + trained(folder) + pins + " -o " + (out / "bundle"));
    ASSERT_EQ(made.code, 0) << made.text;
    const json memory = json::parse(TempFolder::read(out / "bundle/manifest.json"))["memory_bytes"];
    if (whole == 0) whole = memory["state"].get<double>();
    EXPECT_LE(memory["state"].get<double>() / whole, state);
    const Outcome proved = run_partita("verify " + (out / "bundle"));
    EXPECT_EQ(proved.code, 0) << proved.text;
    const std::vector<double> found = losses("run " + (out / "bundle"));
    ASSERT_EQ(found.size(), one.size());
    for (size_t k = 0; k < found.size(); ++k) EXPECT_NEAR(found[k] / one[k], 1, 2e-6) << k;
    std::filesystem::remove_all(out / "bundle");
  }
}

// What is sent: tokens and what they chose to all ranks of the axis, sums of what came of them back; neither weights
// nor rows between an expert's products.
TEST(Experts, ExpertAxisSendsTokensAlone) {
  const std::string folder = std::string(PARTITA_MODELS) + "/mixtral";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is missing";
  TempFolder out;
  const Outcome made = run_partita("compile " + trained(folder) + "--ranks 2 --pin expert=2 -o " + (out / "bundle"));
  ASSERT_EQ(made.code, 0) << made.text;
  const std::string program = TempFolder::read(out / "bundle/verify/rank.ir");
  for (const char* part : {"f32[2,192,64] parameter \"val_262\"", "f32[2,64,96] parameter \"val_271\""})
    EXPECT_THAT(program, HasSubstr(part));
  const auto count = [&](const std::string& text) {
    int n = 0;
    for (size_t at = program.find(text); at != std::string::npos; at = program.find(text, at + 1)) ++n;
    return n;
  };
  // Of each of two layers 48 tokens a rank for 96 rows, their numbers, and in the backward part the rows' gradients.
  for (const char* gathered : {"f32[2,48,64] = all_gather(", "i64[2,96] = all_gather(", "f32[2,96,64] = all_gather("})
    EXPECT_EQ(count(gathered), 2) << gathered;
  EXPECT_EQ(count(" = all_gather("), 6);
  EXPECT_EQ(count(" = all_to_all("), 0);
  EXPECT_EQ(count("f32[96,64] = reduce_scatter("), 2);
  EXPECT_EQ(count(" = reduce_scatter("), 4);
}

// A plan counts what the axis divides, and what it sends.
TEST(Experts, PlansCountWhatTheExpertAxisDivides) {
  const std::string folder = std::string(PARTITA_MODELS) + "/mixtral";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << folder << " is missing";
  TempFolder out;
  out.write("cluster.yaml", "device: cpu\ndevices_per_node: 2\nnodes: 1\n");
  double memory[2], program[2], sent[2];
  for (int k : {0, 1}) {
    const Outcome planned = run_partita("plan " + trained(folder) +
                                        "--pin zero=0 --pin micro_batch=2 --pin expert=" + std::to_string(k + 1) +
                                        " --cluster " + (out / "cluster.yaml") + " -o " + (out / "plan.json"));
    ASSERT_EQ(planned.code, 0) << planned.text;
    const json predicted = json::parse(TempFolder::read(out / "plan.json"))["predicted"];
    memory[k] = predicted["memory_bytes"][0].get<double>();
    program[k] = predicted["program_bytes"][0].get<double>();
    sent[k] = predicted["breakdown"]["expert"].get<double>();
  }
  // Of 147,456 elements of experts, half of the parameters and of two states of the optimizer, less what rows take.
  const double states = 147456.0 / 2 * 4 * 3;
  EXPECT_GT(memory[0] - memory[1], 0.5 * states);
  EXPECT_GT(program[0] - program[1], 0.6 * states);
  EXPECT_EQ(sent[0], 0);
  EXPECT_GT(sent[1], 0);
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
