// train.yaml -> Recipe. The keys are in docs/train_yaml.md.
// Every error is InvalidArgument and reads "file:line:column: section.key: expected …, found …" (NotFound for a file
// that is not there).
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "ir/recipe/recipe.h"

namespace partita {

// An empty path is an empty file. `sets`: keys over those of the file, "optimizer.lr=1e-4" each
// (ir/recipe/overrides.h).
absl::StatusOr<Recipe> load_recipe(const std::string& path, const std::vector<std::string>& sets = {});
// `file_name` is only used in messages. An empty text is the empty recipe.
absl::StatusOr<Recipe> parse_recipe(std::string_view text, std::string_view file_name);

// What the file leaves open, or says in vain, a line each: of a DeepSpeed configuration. None where it cannot be read.
std::vector<std::string> notes_on_recipe(const std::string& path);

// What must hold between sections (min_lr <= lr, micro divides global), whichever reader filled the recipe.
absl::Status check_recipe(const Recipe& recipe, std::string_view file_name);

}  // namespace partita
