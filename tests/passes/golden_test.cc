// Each pass of the tables on small graphs: tests/golden/passes/PASS/CASE.txt has the graph before it and after it, as
// text (ir/text/print.h). `passes_test --gtest_filter='*Golden*' --update` writes what comes after anew; read the
// difference before it is committed.
//
//   # What the case shows.
//   # recipe: precision: bf16              a line of train.yaml that the pass reads
//   # context: micro_batches=2 accumulate  what else it is told
//   graph "before" …
//   =>
//   graph "before" …
#include <gtest/gtest.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <ostream>
#include <set>
#include <sstream>

#include "base/cat.h"
#include "ir/recipe/read_recipe.h"
#include "ir/text/parse.h"
#include "ir/text/print.h"
#include "passes/pipeline.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_options.h"

namespace partita {
namespace {

namespace fs = std::filesystem;

const fs::path kFolder = fs::path(PARTITA_TEST_DATA).parent_path() / "golden" / "passes";
constexpr std::string_view kArrow = "=>\n";

struct GoldenCase {
  std::string pass, file;
};
void PrintTo(const GoldenCase& c, std::ostream* out) { *out << c.pass << "/" << c.file; }

std::vector<GoldenCase> golden_cases() {
  std::vector<GoldenCase> cases;
  for (const auto& entry : fs::recursive_directory_iterator(kFolder)) {
    if (entry.path().extension() == ".txt")
      cases.push_back({entry.path().parent_path().filename().string(), entry.path().filename().string()});
  }
  std::sort(cases.begin(), cases.end(), [](const GoldenCase& a, const GoldenCase& b) {
    return std::pair(a.pass, a.file) < std::pair(b.pass, b.file);
  });
  return cases;
}

// Of passes that run several times the last comes first: graphs have got furthest there.
std::vector<Pass> all_passes() {
  std::vector<Pass> passes;
  for (PassUse use : {PassUse::kTraining, PassUse::kEvaluation}) {
    const std::vector<Pass> some = graph_passes(use);
    passes.insert(passes.end(), some.rbegin(), some.rend());
  }
  return passes;
}

// What the comments at the top tell the pass.
absl::StatusOr<PassContext> read_context(std::string_view before) {
  constexpr std::string_view kRecipe = "# recipe: ", kContext = "# context: ";
  PassContext context;
  std::string recipe;
  std::istringstream lines{std::string(before)};
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(kRecipe)) append(recipe, line.substr(kRecipe.size()), "\n");
    if (!line.starts_with(kContext)) continue;
    std::istringstream words(line.substr(kContext.size()));
    for (std::string word; words >> word;) {
      const size_t equals = std::min(word.find('='), word.size());
      const std::string name = word.substr(0, equals);
      int64_t number = 0;
      std::from_chars(word.data() + std::min(equals + 1, word.size()), word.data() + word.size(), number);
      if (name == "micro_batches")
        context.micro_batches = number;
      else if (name == "expert_parts")
        context.expert_parts = number;
      else if (name == "accumulate")
        context.accumulate = true;
      else if (name == "update_each")
        context.update_each = true;
      else if (name == "keep_gradients")
        context.keep_gradients = true;
      else
        return absl::InvalidArgumentError(cat("unknown context '", word, "'"));
    }
  }
  auto read = parse_recipe(recipe, "recipe");
  if (!read.ok()) return read.status();
  context.recipe = *std::move(read);
  return context;
}

class Golden : public testing::TestWithParam<GoldenCase> {};

TEST_P(Golden, PassGivesTheGraphOfTheFile) {
  const std::string path = (kFolder / GetParam().pass / GetParam().file).string(), text = TempFolder::read(path);
  const size_t arrow = text.find(cat("\n", kArrow));
  ASSERT_NE(arrow, text.npos) << path << ": a line '=>' is missing between the graph before and the graph after";
  const std::string before = text.substr(0, arrow + 1);
  auto context = read_context(before);
  ASSERT_TRUE(context.ok()) << path << ": " << context.status().message();
  auto graph = parse_graph(before);
  ASSERT_TRUE(graph.ok()) << path << ": " << graph.status().message();
  const std::vector<Pass> passes = all_passes();
  const auto pass = std::find_if(passes.begin(), passes.end(), [](const Pass& p) { return p.name == GetParam().pass; });
  ASSERT_NE(pass, passes.end()) << path << ": no table has a pass of this name";
  auto after = pass->function(*graph, *context);
  ASSERT_TRUE(after.ok()) << path << ": " << after.status().message();
  EXPECT_TRUE(verify(*after, pass->phase).ok()) << path << ": " << verify(*after, pass->phase);
  const std::string now = cat(before, kArrow, print(*after));
  if (test_options().update) {
    std::ofstream(path, std::ios::binary) << now;
    return;
  }
  EXPECT_EQ(now, text) << path << ": if that is meant, passes_test --gtest_filter='*Golden*' --update";
}

INSTANTIATE_TEST_SUITE_P(Passes, Golden, testing::ValuesIn(golden_cases()), [](const auto& info) {
  std::string name = cat(info.param.pass, "_", fs::path(info.param.file).stem().string());
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); }, '_');
  return name;
});

TEST(GoldenCases, AreThereForEveryPass) {
  std::set<std::string> folders;
  for (const GoldenCase& c : golden_cases()) folders.insert(c.pass);
  for (const Pass& pass : all_passes())
    EXPECT_TRUE(folders.contains(std::string(pass.name))) << "no case in " << (kFolder / pass.name);
}

}  // namespace
}  // namespace partita
