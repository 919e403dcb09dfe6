// train.yaml -> Recipe. The keys are in docs/train_yaml.md.
// Every error is InvalidArgument and reads "file:line:column: section.key: expected …, found …" (NotFound for a file
// that is not there).
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "ir/recipe/recipe.h"

namespace partita {

absl::StatusOr<Recipe> load_recipe(const std::string& path);
// `file_name` is only used in messages. An empty text is the empty recipe.
absl::StatusOr<Recipe> parse_recipe(std::string_view text, std::string_view file_name);

// What must hold between sections (min_lr <= lr, micro divides global), whichever reader filled the recipe.
absl::Status check_recipe(const Recipe& recipe, std::string_view file_name);

}  // namespace partita
