// Several extents of one symbolic dimension.
#include "ir/recipe/lengths.h"

#include <gtest/gtest.h>

#include "ir/recipe/read_recipe.h"
#include "ir/recipe/write_recipe.h"
#include "tests/ir/support/parsed_recipe.h"

namespace partita {
namespace {

TEST(ParseRecipe_Lengths, BindTheLargest_AndAreWrittenBack) {
  const auto recipe = parse_recipe("bind: {sequence: [1024, 512, 2048], batch: 8}", "t");
  ASSERT_TRUE(recipe.ok()) << recipe.status();
  EXPECT_EQ(recipe->lengths, (LengthsRecipe{"sequence", {512, 1024, 2048}}));
  EXPECT_EQ(recipe->bind.at("sequence"), 2048);
  const auto again = parse_recipe(format_recipe(*recipe), "t");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->lengths, recipe->lengths);
  EXPECT_EQ(again->bind, recipe->bind);
  const auto one = parse_recipe("bind: {sequence: [512]}", "t");
  EXPECT_TRUE(one->lengths.extents.empty());
  EXPECT_EQ(one->bind.at("sequence"), 512);
}

TEST(ParseRecipe_Lengths, AreRefused) {
  const struct {
    const char *recipe, *message;
  } cases[] = {
      {"bind: {s: []}", "t:1:11: bind.s: expected an integer, or a list of at most 16, found a list of 0"},
      {"bind: {s: [8, 0]}", "t:1:15: bind.s[1]: expected an integer >= 1, found '0'"},
      {"bind: {s: [8, 16, 8]}", "t:1:19: bind.s[2]: expected another length than those before, found '8'"},
      {"bind: {s: [8, 16], t: [1, 2]}", "t:1:23: bind.t: expected one number: 's' has several already, found a list"},
      {"bind: {s: [12, 16]}\nbatch: {global: 2}",
       "t: bind.s: batch.global 2 of length 16 is 32 positions, no whole number of samples of length 12; expected "
       "batch.global to be a multiple of 3, or lengths that divide 32"},
      {"bind: {s: [12, 16]}\nbatch: {global: 6, micro: 2}", "t: bind.s: batch.micro 2 of length 16 is 32 positions"},
      {"bind: {s: [8, 16]}\nbatch: {global: [[0, 4], [2, 8]]}",
       "t: bind.s: expected one length beside a batch.global that changes"},
      {"data: {lengths: n}", "t: data.lengths: expected several lengths of one dimension in bind, found none"},
      {"data: {kind: tokens, lengths: n}", "t:1:22: data: "},
      {"bind: {s: [8, 16]}\npin: {schedule: pipedream}", "t: bind.s: expected one length with schedule: pipedream"},
  };
  for (const auto& [recipe, message] : cases) expect_refused(recipe, message);
}

TEST(RecipeOfLength, TakesAsManyPositionsAStep) {
  const auto recipe = parse_recipe("bind: {s: [8, 12, 16]}\nbatch: {global: 12, micro: 3}\npin: {micro_batch: 3}", "t");
  ASSERT_TRUE(recipe.ok()) << recipe.status();
  const auto of_12 = recipe_of_length(*recipe, 12, 12);
  ASSERT_TRUE(of_12.ok()) << of_12.status();
  EXPECT_EQ(of_12->bind.at("s"), 12);
  EXPECT_EQ(of_12->batch.global, 16);
  EXPECT_EQ(of_12->batch.micro, 4);
  EXPECT_EQ(of_12->pin.micro_batch, 4);
  EXPECT_FALSE(recipe_of_length(*recipe, 2, 12).ok());
}

}  // namespace
}  // namespace partita
