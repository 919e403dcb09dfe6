// What train.yaml says of the data, as the runtime has it.
#pragma once

#include <cstdint>

#include "ir/graph/graph.h"
#include "ir/recipe/recipe.h"
#include "nlohmann/json.hpp"
#include "runtime/data/data_config.h"

namespace partita {

// What a run goes by besides its programs, as the manifest and the serial program's first lines have it: data, seed
// and, where the recipe has it, evaluate. `training`: the graph, which may shift labels itself.
nlohmann::json run_settings(const Recipe& recipe, const Graph& training);

// `seed`: where the settings have none of their own.
runtime::DataConfig data_settings(const DataRecipe& d, uint64_t seed, const std::vector<std::string>& shifted_inside);

}  // namespace partita
