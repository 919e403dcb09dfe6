// TOML (https://toml.io/en/v1.0.0) as a tree with positions, as far as settings files use it: tables, dotted keys,
// strings, numbers, booleans, arrays and inline tables. Dates, arrays of tables and strings of several lines are
// refused.
#pragma once

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "ir/yaml/yaml_document.h"

namespace partita {

// Errors are InvalidArgument and begin with "line:column: ".
absl::StatusOr<std::shared_ptr<const YamlNode>> parse_toml(std::string_view text);

}  // namespace partita
