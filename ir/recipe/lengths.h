// Samples of several lengths: what a recipe says of steps of each.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ir/recipe/recipe.h"

namespace partita {

// That steps of each length can have as many tokens as those of the largest: batch.global, batch.micro and
// pin.micro_batch of its samples make whole samples of each other one. InvalidArgument with what would do; also where
// the recipe asks for what steps of several lengths cannot have.
absl::Status check_lengths(const Recipe& recipe);

// The recipe of the steps of one length, where steps of the largest take `samples`. InvalidArgument as above.
absl::StatusOr<Recipe> recipe_of_length(Recipe recipe, int64_t samples, int64_t length);

}  // namespace partita
