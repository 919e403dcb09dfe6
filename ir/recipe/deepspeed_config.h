// A DeepSpeed configuration (ds_config.json) in place of train.yaml. What concerns the plan, the update and the run is
// taken over; settings of DeepSpeed's own machinery (bucket sizes, overlap) have no effect here, each for its reason;
// what would train something else is refused, and so are keys that nobody knows.
// Source: DeepSpeed's "Configuration JSON" reference.
#pragma once

#include <string_view>

#include "ir/recipe/config_keys.h"
#include "ir/recipe/recipe.h"
#include "ir/yaml/yaml_document.h"

namespace partita {

// Whether a settings file is one of DeepSpeed's, by its keys.
bool is_deepspeed_config(const YamlNode& root);

// Every key with what becomes of it.
ImportedConfig import_deepspeed_config(const YamlNode& root);

// Its recipe. Errors are those of the first key that is refused, "line:column: section.key: expected …, found …".
absl::Status parse_deepspeed_config(const YamlNode& root, Recipe& out);

// What a configuration says that is left open or has no effect here, a line each.
std::vector<std::string> deepspeed_notes(const YamlNode& root);

}  // namespace partita
