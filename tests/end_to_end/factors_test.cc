// The bet on factors: every textbook split of every part of these models goes through with the textbook's
// communication.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>

#include "nlohmann/json.hpp"
#include "tests/support/command.h"

namespace partita {
namespace {

namespace fs = std::filesystem;

nlohmann::json factors(const std::string& folder) {
  Outcome out = run_command(partita_program() + " factors --json " + folder);
  EXPECT_EQ(out.code, 0) << out.text;
  return nlohmann::json::parse(out.text.substr(out.text.find('{')), nullptr, false);
}

// How often a kind of site stands in the model, blocks that are folded included.
std::map<std::string, int> sites(const nlohmann::json& report) {
  std::map<std::string, int> found;
  for (const auto& site : report["sites"]) found[site["kind"]] += site["times"].get<int>();
  return found;
}

struct Expected {
  const char* folder;
  int attentions, pairs, embeddings, heads;
  std::set<std::string> splits;
};

class Factors : public ::testing::TestWithParam<Expected> {};

TEST_P(Factors, EverySplit_GoesThrough) {
  const Expected& e = GetParam();
  std::string folder = std::string(PARTITA_MODELS) + "/" + e.folder;
  if (!fs::exists(folder)) GTEST_SKIP() << "no model in " << folder;
  nlohmann::json report = factors(folder);
  ASSERT_TRUE(report.is_object());
  auto found = sites(report);
  EXPECT_EQ(found["attention"], e.attentions);
  EXPECT_EQ(found["attention, not recognised"], 0);
  EXPECT_EQ(found["matmul pair"], e.pairs);
  EXPECT_EQ(found["embedding"], e.embeddings);
  EXPECT_EQ(found["vocabulary head"], e.heads);
  std::set<std::string> splits;
  for (const auto& site : report["sites"]) {
    for (const auto& [split, outcome] : site["splits"].items()) {
      splits.insert(split);
      EXPECT_TRUE(outcome["textbook"].get<bool>())
          << e.folder << ": " << site["kind"] << " at " << site["at"] << ", " << split << ": " << outcome;
    }
  }
  EXPECT_EQ(splits, e.splits);
}

const std::set<std::string> kAll = {"batch", "sequence", "heads", "features", "vocabulary"};

INSTANTIATE_TEST_SUITE_P(Models, Factors,
                         ::testing::Values(Expected{"gpt2", 3, 3, 1, 1, kAll},
                                           Expected{"gpt2_legacy", 2, 2, 1, 1, kAll},
                                           Expected{"llama", 3, 3, 1, 1, kAll},
                                           Expected{"llama_opset23", 2, 2, 1, 1, kAll},
                                           Expected{"mixtral", 2, 2, 1, 1, kAll},  // its experts are the pairs
                                           Expected{"bert", 3, 3, 2, 1, kAll},
                                           // Positions join a class token: there is no even split of the sequence.
                                           Expected{"vit", 3, 3, 0, 1, {"batch", "heads", "features", "vocabulary"}}),
                         [](const auto& info) { return std::string(info.param.folder); });

TEST(FactorsOfOwnModel, EverySplit_GoesThrough) {
  nlohmann::json report = factors(std::string(PARTITA_TEST_DATA) + "/gpt2");
  ASSERT_TRUE(report.is_object());
  EXPECT_GE(report["tried"].get<int>(), 12);
  EXPECT_EQ(report["passed"], report["tried"]);
}

TEST(FactorsCommand, Mistakes_AreNamed) {
  Outcome missing = run_command(partita_program() + " factors /nowhere/model.onnx");
  EXPECT_EQ(missing.code, 2);
  EXPECT_NE(missing.text.find("/nowhere/model.onnx"), std::string::npos) << missing.text;
}

}  // namespace
}  // namespace partita
