// A cluster of two kinds of devices, from cluster.yaml to losses: each kind has stages of its own, which compile, are
// proved, and train as one rank does.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <regex>

#include "nlohmann/json.hpp"
#include "tests/support/carried_model.h"
#include "tests/support/report_page.h"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

using testing::HasSubstr;

// Two devices, and one that takes three times as long.
constexpr const char* kCluster = R"(groups:
- {device: {like: cpu, name: fast}, devices_per_node: 2, links: [{kind: memory, group: 2}]}
- {device: {like: cpu, name: slow, bandwidth: 3.3e9, flops: {fp32: 20e9, tf32: 20e9, bf16: 20e9, fp16: 20e9}}}
between: {kind: memory}
)";

class MixedPlan : public testing::Test {
 protected:
  void SetUp() override {
    out_.write("cluster.yaml", kCluster);
    write_text(out_);
    planned_ = plan("plan.json", "");
    ASSERT_EQ(planned_.code, 0) << planned_.text;
    plan_ = nlohmann::json::parse(TempFolder::read(out_ / "plan.json"));
  }

  Outcome plan(const std::string& file, const std::string& flags) {
    return run_partita("plan " + kCarriedModel + "--cluster " + (out_ / "cluster.yaml") + " -o " + (out_ / file) + " " +
                       flags);
  }
  std::vector<double> train(const std::string& flags) const { return train_carried(out_, flags); }

  TempFolder out_;
  Outcome planned_;
  nlohmann::json plan_;
};

TEST_F(MixedPlan, StagesFollowTheDevices) {
  const nlohmann::json& stages = plan_["stages"];
  ASSERT_EQ(stages.size(), 2u) << planned_.text;
  EXPECT_EQ(stages[0]["device"], "fast");
  EXPECT_EQ(stages[0]["ranks"], 2);
  EXPECT_EQ(stages[1]["device"], "slow");
  EXPECT_EQ(stages[1]["first_rank"], 2);
  EXPECT_GT(stages[0]["chunks"][0]["units"], stages[1]["chunks"][0]["units"]);
  ASSERT_EQ(plan_["pin"]["stages"].size(), 2u);
  // As fast as no layout that has all stages alike.
  Outcome alike = plan("alike.json", "--pin pipeline=1");
  ASSERT_EQ(alike.code, 0) << alike.text;
  EXPECT_LT(plan_["predicted"]["step_seconds"].get<double>(),
            nlohmann::json::parse(TempFolder::read(out_ / "alike.json"))["predicted"]["step_seconds"].get<double>());
  EXPECT_THAT(planned_.text, HasSubstr("fast: ranks 0 to 1"));
  EXPECT_THAT(planned_.text, HasSubstr("slow: ranks 2 to 2"));
}

TEST_F(MixedPlan, TrainsAsOneRankDoes) {
  const std::vector<double> one = train(""), mixed = train("--plan " + (out_ / "plan.json"));
  ASSERT_EQ(one.size(), 3u);
  ASSERT_EQ(mixed.size(), 3u);
  for (size_t k = 0; k < one.size(); ++k) EXPECT_NEAR(mixed[k] / one[k], 1, 1e-5) << k;
}

TEST_F(MixedPlan, IsProvedEqualToTheSerialProgram) {
  Outcome compiled =
      run_partita("compile " + kCarriedModel + "--plan " + (out_ / "plan.json") + " -o " + (out_ / "bundle"));
  ASSERT_EQ(compiled.code, 0) << compiled.text;
  Outcome verified = run_partita("verify --numeric " + (out_ / "bundle"));
  EXPECT_EQ(verified.code, 0) << verified.text;
  EXPECT_THAT(verified.text, HasSubstr("verified: 3 ranks in 2 stages"));
}

// The two kinds are the same processor here: what was measured takes the slow one's constants to those of the fast one.
TEST_F(MixedPlan, AMeasuredRunCorrectsEachKind) {
  Outcome run = run_partita("train " + kCarriedModel + "--quiet --steps 8 --data " + (out_ / "text.bin") + " --plan " +
                            (out_ / "plan.json") + " --profile " + (out_ / "trace.json"));
  ASSERT_EQ(run.code, 0) << run.text;
  const std::string refine = "--refine " + (out_ / "trace.json") + " --ran " + (out_ / "plan.json");
  Outcome refined = plan("again.json", refine + " --refined-profile " + (out_ / "refined.yaml"));
  ASSERT_EQ(refined.code, 0) << refined.text;
  EXPECT_THAT(refined.text, HasSubstr("fast: ranks 0 to 1, stage 0"));
  EXPECT_THAT(refined.text, HasSubstr("slow: ranks 2 to 2, stage 1"));
  auto corrected = [&](const std::string& device) {
    std::smatch found;
    const std::regex line(device + ": flops.fp32 +([0-9.e+-]+) -> ([0-9.e+-]+)");
    return std::regex_search(refined.text, found, line) ? std::stod(found[2]) : 0;
  };
  ASSERT_GT(corrected("fast"), 0) << refined.text;
  EXPECT_GT(corrected("slow") / corrected("fast"), 0.5) << refined.text;  // a third, as the file has it
  const std::string profiles = TempFolder::read(out_ / "refined.yaml");
  for (const char* device : {"fast:", "slow:"}) EXPECT_THAT(profiles, HasSubstr(device));

  ASSERT_EQ(
      run_partita("report " + (out_ / "plan.json") + " -o " + (out_ / "r.html") + " --trace " + (out_ / "trace.json"))
          .code,
      0);
  const nlohmann::json measured = page_data(TempFolder::read(out_ / "r.html"))["measured"];
  ASSERT_EQ(measured["groups"].size(), 2u);
  EXPECT_EQ(measured["groups"][0]["of"], "fast: ranks 0 to 1, stage 0");
  EXPECT_EQ(measured["groups"][1]["of"], "slow: ranks 2 to 2, stage 1");

  std::filesystem::remove(out_ / "trace.rank2.json");
  Outcome missing = plan("again.json", refine);
  EXPECT_EQ(missing.code, 2) << missing.text;
  EXPECT_THAT(missing.text, HasSubstr("rank 2 is on devices of its own kind, and its trace is missing"));
}

// Every view of the plan says what each kind of device does.
TEST_F(MixedPlan, ViewsTellTheGroups) {
  Outcome explained = run_partita("explain " + (out_ / "plan.json") + " --what-if");
  ASSERT_EQ(explained.code, 0) << explained.text;
  EXPECT_THAT(explained.text, HasSubstr("slow: ranks 2 to 2"));
  EXPECT_THAT(explained.text, HasSubstr("groups in the order 1 x slow + 2 x fast"));
  Outcome simulated = run_partita("simulate " + (out_ / "plan.json"));
  EXPECT_EQ(simulated.code, 0) << simulated.text;
  Outcome swept = run_partita("sweep " + kCarriedModel + "--cluster " + (out_ / "cluster.yaml") + " --devices 3,6");
  ASSERT_EQ(swept.code, 0) << swept.text;
  EXPECT_THAT(swept.text, HasSubstr("stages data 2 | one device"));
  ASSERT_EQ(plan("other.json", "--pin data=1").code, 0);
  Outcome differ = run_partita("diff --all " + (out_ / "plan.json") + " " + (out_ / "other.json"));
  ASSERT_EQ(differ.code, 0) << differ.text;
  EXPECT_THAT(differ.text, HasSubstr("pin/stages/0/data: 2"));
}

}  // namespace
}  // namespace partita
