// Data settings as JSON, as a bundle's manifest has them.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "runtime/data/data_config.h"

namespace partita::runtime {

nlohmann::json to_json(const DataConfig& config);
// DataLoss for values of a wrong kind; unknown keys are refused.
absl::StatusOr<DataConfig> data_config_from_json(const nlohmann::json& json);

// All but where files lie and how they are read: alike on ranks that read the data in one way.
std::string settings_of(const DataConfig& config);
// Of the stream of samples: what a run that is resumed must have as it was.
std::string describe_data(const DataConfig& config);

}  // namespace partita::runtime
