// Data settings as JSON, as a bundle's manifest has them.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "runtime/data/data_config.h"

namespace partita::runtime {

// join, separate, pack or pad.
std::string_view documents_name(Documents documents);
absl::StatusOr<Documents> parse_documents(std::string_view text);

nlohmann::json to_json(const DataConfig& config);
// DataLoss for values of a wrong kind; unknown keys are refused.
absl::StatusOr<DataConfig> data_config_from_json(const nlohmann::json& json);

}  // namespace partita::runtime
