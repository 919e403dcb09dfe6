// A plan that the search made is what `train` and `compile` run: from cluster.yaml to losses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/temp_folder.h"
#include "tests/tools/command.h"
#include "tests/tools/losses.h"

namespace partita {
namespace {

using testing::HasSubstr;

class PlanCommand : public testing::Test {
 protected:
  void SetUp() override {
    out_.write("cluster.yaml", "nodes: 1\ndevices_per_node: 4\ndevice: cpu\n");
    out_.write("text.bin", std::string(60000, 'a') + std::string(60000, 'b'));
  }

  std::string model() const { return model_ + "/model.onnx --train " + model_ + "/train.yaml "; }
  Outcome partita(const std::string& arguments) { return run_command(partita_program() + " " + arguments); }
  Outcome plan(const std::string& flags, const std::string& file) {
    return partita("plan " + model() + "--cluster " + (out_ / "cluster.yaml") + " --quiet -o " + (out_ / file) + " " +
                   flags);
  }
  std::vector<double> train(const std::string& flags) {
    Outcome o = partita("train " + model() + "--quiet --steps 3 --data " + (out_ / "text.bin") + " --metrics " +
                        (out_ / "m.jsonl") + " " + flags);
    EXPECT_EQ(o.code, 0) << o.text;
    return read_losses(out_ / "m.jsonl");
  }

  std::string model_ = std::string(PARTITA_TEST_DATA) + "/gpt2";
  TempFolder out_;
};

TEST_F(PlanCommand, ThePlannedLayoutTrainsAsOneRankDoes) {
  std::vector<double> one = train("");
  ASSERT_EQ(one.size(), 3u);
  for (const char* pins : {"--pin pipeline=1 --pin recompute=none", "--like megatron:tp2 --pin recompute=none",
                           "--like zero3 --pin recompute=none --pin micro_batch=1"}) {
    SCOPED_TRACE(pins);
    Outcome planned = plan(pins, "plan.json");
    ASSERT_EQ(planned.code, 0) << planned.text;
    std::vector<double> losses = train("--plan " + (out_ / "plan.json"));
    ASSERT_EQ(losses.size(), one.size());
    for (size_t k = 0; k < one.size(); ++k) EXPECT_NEAR(losses[k] / one[k], 1, 1e-5) << k;
  }
}

TEST_F(PlanCommand, WhatDoesNotFitThePlanIsRefused) {
  ASSERT_EQ(plan("--pin pipeline=1 --pin recompute=none", "plan.json").code, 0);
  auto compile = [&](const std::string& flags) {
    return partita("compile " + model() + "-o " + (out_ / "bundle") + " --plan " + flags);
  };
  Outcome ranks = compile((out_ / "plan.json") + " --ranks 3");
  EXPECT_EQ(ranks.code, 2) << ranks.text;
  EXPECT_THAT(ranks.text, HasSubstr("--ranks says 3"));
  out_.write("half.json", TempFolder::read(out_ / "plan.json").substr(0, 200));
  Outcome half = compile(out_ / "half.json");
  EXPECT_EQ(half.code, 2) << half.text;
  EXPECT_THAT(half.text, HasSubstr("expected a plan in JSON"));
  std::string text = TempFolder::read(out_ / "plan.json"), batch = "\"global_batch\": 8";
  size_t at = text.find(batch);
  ASSERT_NE(at, std::string::npos);
  out_.write("other.json", text.replace(at, batch.size(), "\"global_batch\": 16"));
  Outcome other = compile(out_ / "other.json");
  EXPECT_EQ(other.code, 2) << other.text;
  EXPECT_THAT(other.text, HasSubstr("is for a global batch of 16 and batch.global is 8"));
}

// The plan's memory is a model's; what the program was laid out to need decides.
TEST_F(PlanCommand, AProgramThatNeedsMoreThanThePlansDevicesIsRefused) {
  ASSERT_EQ(plan("--pin pipeline=1 --pin recompute=none", "plan.json").code, 0);
  auto compile = [&](const std::string& flags) {
    return partita("compile " + model() + "-o " + (out_ / "bundle") + " --plan " + flags);
  };
  EXPECT_EQ(compile(out_ / "plan.json").code, 0);
  std::string text = TempFolder::read(out_ / "plan.json"), capacity = "\"capacity_bytes\": ";
  size_t at = text.find(capacity);
  ASSERT_NE(at, std::string::npos);
  size_t number = at + capacity.size(), end = text.find_first_of(",}\n", number);
  out_.write("small.json", text.replace(number, end - number, "100100000"));  // 100 kB beside the reserve
  Outcome refused = compile(out_ / "small.json");
  EXPECT_EQ(refused.code, 3) << refused.text;
  EXPECT_THAT(refused.text, HasSubstr("of device memory (state"));
  EXPECT_THAT(refused.text, HasSubstr("the plan's devices have 0.0001 GB beside the reserve"));
  EXPECT_EQ(compile((out_ / "small.json") + " --allow-infeasible").code, 0);
}

}  // namespace
}  // namespace partita
