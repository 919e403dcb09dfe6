// A recipe from its text, which must be sound, or refused.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "ir/recipe/read_recipe.h"

namespace partita {

inline Recipe parsed_recipe(std::string_view text) {
  auto recipe = parse_recipe(text, "train.yaml");
  EXPECT_TRUE(recipe.ok()) << text << "\n" << recipe.status().message();
  return recipe.ok() ? *recipe : Recipe();
}

// Why a text, of a file called "t", is no recipe.
inline std::string refusal(std::string_view text) {
  auto recipe = parse_recipe(text, "t");
  if (recipe.ok()) return "accepted";
  EXPECT_EQ(recipe.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(recipe.status().message());
}

// `message`: what is said, from its beginning where that is the place.
inline void expect_refused(std::string_view text, const std::string& message) {
  const std::string said = refusal(text);
  EXPECT_THAT(said, message.starts_with("t:") ? testing::Matcher<std::string>(testing::StartsWith(message))
                                              : testing::HasSubstr(message))
      << text;
  EXPECT_LT(said.size(), 800u);
}

}  // namespace partita
