// A recipe from its text, which must be sound.
#pragma once

#include <gtest/gtest.h>

#include <string_view>

#include "ir/recipe/read_recipe.h"

namespace partita {

inline Recipe parsed_recipe(std::string_view text) {
  auto recipe = parse_recipe(text, "train.yaml");
  EXPECT_TRUE(recipe.ok()) << text << "\n" << recipe.status().message();
  return recipe.ok() ? *recipe : Recipe();
}

}  // namespace partita
