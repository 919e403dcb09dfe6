// What train.yaml says of the data, as the runtime has it.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "ir/recipe/recipe.h"
#include "runtime/data/data_config.h"

namespace partita {

// `seed`: where the settings have none of their own. InvalidArgument for a kind or a treatment of documents that the
// runtime does not know.
absl::StatusOr<runtime::DataConfig> data_settings(const DataRecipe& d, uint64_t seed);

}  // namespace partita
