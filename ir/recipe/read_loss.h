// The sections `loss` and `metrics` of train.yaml.
#pragma once

#include <string>

#include "ir/recipe/recipe.h"
#include "ir/yaml/yaml_document.h"

namespace partita {

// One loss, or a list of them.
absl::Status parse_losses(const YamlNode& node, const std::string& path, Recipe& out);
absl::Status parse_metrics(const YamlNode& node, const std::string& path, Recipe& out);

}  // namespace partita
