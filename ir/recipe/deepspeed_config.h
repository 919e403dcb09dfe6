// A DeepSpeed configuration (ds_config.json) in place of train.yaml. What concerns the plan and the update is taken
// over; settings of DeepSpeed's own machinery (bucket sizes, overlap, logging) are accepted and have no meaning here;
// anything else is refused, with the nearest key that is known.
// Source: DeepSpeed's "Configuration JSON" reference.
#pragma once

#include <string_view>

#include "ir/recipe/recipe.h"
#include "ir/recipe/yaml_document.h"

namespace partita {

// Whether a settings file is one of DeepSpeed's, by its keys.
bool is_deepspeed_config(const YamlNode& root);

// Errors read "line:column: section.key: expected …, found …".
absl::Status parse_deepspeed_config(const YamlNode& root, Recipe& out);

// What a configuration says that is left open or means nothing here, a line each.
std::vector<std::string> deepspeed_notes(const YamlNode& root);

}  // namespace partita
