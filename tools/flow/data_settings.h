// What train.yaml says of the data, as the runtime has it.
#pragma once

#include <cstdint>

#include "ir/recipe/recipe.h"
#include "runtime/data/data_config.h"

namespace partita {

// `seed`: where the settings have none of their own.
runtime::DataConfig data_settings(const DataRecipe& d, uint64_t seed, const std::vector<std::string>& shifted_inside);

}  // namespace partita
