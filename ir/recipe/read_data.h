// The section `data` of train.yaml.
#pragma once

#include <string>

#include "ir/recipe/recipe.h"
#include "ir/yaml/yaml_document.h"

namespace partita {

absl::Status parse_data(const YamlNode& node, const std::string& path, DataRecipe& out);

}  // namespace partita
