// The sections `optimizer` and `schedule` of train.yaml.
#pragma once

#include <string>

#include "ir/recipe/recipe.h"
#include "ir/yaml/yaml_document.h"

namespace partita {

absl::Status parse_optimizer(const YamlNode& node, const std::string& path, OptimizerRecipe& out);
absl::Status parse_schedule(const YamlNode& node, const std::string& path, ScheduleRecipe& out);

}  // namespace partita
