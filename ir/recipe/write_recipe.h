// A recipe as a train.yaml that reads back to it.
#pragma once

#include <string>

#include "ir/recipe/recipe.h"

namespace partita {

// One key a line (docs/train_yaml.md), with all that a chosen `kind` has; what is not said is left out.
std::string format_recipe(const Recipe& recipe);
// The value of its key `pin`: "{data: 2, zero: 1}".
std::string format_pins(const PinRecipe& pin);

}  // namespace partita
