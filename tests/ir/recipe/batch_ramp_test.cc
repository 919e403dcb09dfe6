// A global batch that changes at steps.
#include <gtest/gtest.h>

#include "ir/recipe/read_recipe.h"
#include "tests/ir/support/parsed_recipe.h"

namespace partita {
namespace {

TEST(ParseRecipe_BatchRamp, EndsWithTheGlobalBatch) {
  const auto recipe = parse_recipe("batch: {global: [[0, 4], [3, 8], [1e4, 16]]}", "t");
  ASSERT_TRUE(recipe.ok()) << recipe.status();
  EXPECT_EQ(recipe->batch.ramp, (std::vector<BatchPhase>{{0, 4}, {3, 8}, {10000, 16}}));
  EXPECT_EQ(recipe->batch.global, 16);
}

TEST(ParseRecipe_BatchRamp, IsRefused) {
  const struct {
    const char *recipe, *message;
  } cases[] = {
      {"batch: {global: [[0, 4], [2]]}", "t:1:26: batch.global[1]: expected a pair [step, samples], found a list of 1"},
      {"batch: {global: [[1, 4]]}", "t:1:18: batch.global[0]: expected step 0 first, found a list of 2"},
      {"batch: {global: [[0, 4], [5, 8], [5, 16]]}", "t:1:34: batch.global[2]: expected a step after 5, found a list"},
      {"batch: {global: [[0, 4], [5, 0]]}", "t:1:30: batch.global[1]: expected an integer >= 1, found '0'"},
      {"batch: {global: []}", "t:1:17: batch.global: expected 1 to 64 pairs [step, samples], found a list of 0"},
      {"batch: {global: [[0, 6], [5, 8]], micro: 4}",
       "t: batch.micro: expected a divisor of batch.global 6 (from step 0), found 4"},
      {"batch: {global: [[0, 4], [5, 8]], accumulation: 2}",
       "t: batch.accumulation: expected none beside a batch.global that changes"},
      {"batch: {global: [[0, 4], [5, 8]]}\npin: {schedule: pipedream}",
       "t: batch.global: expected one number with schedule: pipedream"},
  };
  for (const auto& [recipe, message] : cases) expect_refused(recipe, message);
}

}  // namespace
}  // namespace partita
