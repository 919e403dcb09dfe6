#include "tools/page/report_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/cat.h"
#include "nlohmann/json.hpp"
#include "tests/support/temp_folder.h"

namespace partita {
namespace {

using testing::HasSubstr;
using Json = nlohmann::json;

std::string step(int step, double loss, const char* more = "") {
  return cat("{\"step\":", step, ",\"loss\":", loss, more, "}\n");
}

TEST(LearningCurve, StepsTakenAgainAfterAResumeCountOnce) {
  const TempFolder folder;
  folder.write("m.jsonl", step(0, 4) + step(1, 3) + step(2, 9) + step(1, 2.5) +
                              step(2, 2, ",\"lr\":0.5,\"evaluation_loss\":2.25,\"tokens_per_second\":100"));
  const auto curve = learning_json(folder / "m.jsonl");
  ASSERT_TRUE(curve.ok()) << curve.status();
  EXPECT_EQ((*curve)["points"], Json({{1, 4.0, nullptr, nullptr}, {2, 2.5, nullptr, nullptr}, {3, 2.0, 0.5, nullptr}}));
  EXPECT_EQ((*curve)["evaluations"], Json::array({{3, 2.25}}));
  EXPECT_EQ((*curve)["steps"], 3);
  EXPECT_EQ((*curve)["unit"], "tokens");
  EXPECT_EQ((*curve)["rate"], 100);
}

TEST(LearningCurve, LongRunsAreMeansOfSomeSteps) {
  const TempFolder folder;
  std::string text;
  for (int k = 0; k < 1601; ++k) text += step(k, k);
  folder.write("m.jsonl", text);
  const auto curve = learning_json(folder / "m.jsonl");
  ASSERT_TRUE(curve.ok()) << curve.status();
  EXPECT_EQ((*curve)["every"], 3);
  EXPECT_EQ((*curve)["points"].size(), 534u);
  EXPECT_EQ((*curve)["points"][0], Json({3, 1.0, nullptr, nullptr}));
  EXPECT_EQ((*curve)["points"].back(), Json({1601, 1599.5, nullptr, nullptr}));
}

TEST(LearningCurve, ADivergedLossHasNoPointAndABrokenLastLineIsLeftOut) {
  const TempFolder folder;
  folder.write("m.jsonl", step(0, 4) + "{\"step\":1,\"loss\":null}\n{\"step\":2,\"lo");
  const auto curve = learning_json(folder / "m.jsonl");
  ASSERT_TRUE(curve.ok()) << curve.status();
  EXPECT_EQ((*curve)["points"].size(), 1u);
  EXPECT_EQ((*curve)["steps"], 2);
}

TEST(LearningCurve, OtherFilesAreRefused) {
  const TempFolder folder;
  folder.write("m.csv", "step,loss\n0,4\n");
  folder.write("none.jsonl", "{\"step\":0,\"loss\":null}\n");
  EXPECT_THAT(std::string(learning_json(folder / "m.csv").status().message()),
              HasSubstr("m.csv':1: expected a step's numbers"));
  EXPECT_THAT(std::string(learning_json(folder / "none.jsonl").status().message()),
              HasSubstr("expected steps with a loss, found none"));
  EXPECT_EQ(learning_json(folder / "no.jsonl").status().code(), absl::StatusCode::kNotFound);
}

TEST(Proof, TellsWhatACertificateDoes) {
  const TempFolder folder;
  folder.write(
      "c.json",
      R"({"version":1,"files":{"a":{},"b":{}},"ranks":2,"programs":1,"proved":["x"],"counts":{"values":3},"numeric":null})");
  const auto proof = proof_json(folder / "c.json");
  ASSERT_TRUE(proof.ok()) << proof.status();
  EXPECT_EQ((*proof)["files"], 2);
  EXPECT_EQ((*proof)["ranks"], 2);
  EXPECT_EQ((*proof)["counts"]["values"], 3);
  folder.write("c.json", "{}");
  EXPECT_THAT(std::string(proof_json(folder / "c.json").status().message()), HasSubstr("expected a certificate"));
}

}  // namespace
}  // namespace partita
