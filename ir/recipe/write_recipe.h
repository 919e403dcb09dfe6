// A recipe as a train.yaml that reads back to it.
#pragma once

#include <map>
#include <string>

#include "ir/recipe/recipe.h"

namespace partita {

// One key a line (docs/train_yaml.md), with all that a chosen `kind` has; what is not said is left out.
std::string format_recipe(const Recipe& recipe);
// Its keys that decide what a step makes of the same weights and samples, and the values that format_recipe() gives
// them; the seed, the batch and the data, which a run knows by itself, are left out.
std::map<std::string, std::string> step_keys(const Recipe& recipe);
// The value of its key `pin`: "{data: 2, zero: 1}".
std::string format_pins(const PinRecipe& pin);

}  // namespace partita
