// accelerate's configuration (`accelerate config` writes it): plain data parallelism, FSDP, DeepSpeed and Megatron-LM.
// Source: huggingface.co/docs/accelerate, "Command line" and "FSDP"; accelerate/commands/config.
#pragma once

#include <string>

#include "ir/recipe/config_keys.h"

namespace partita {

bool is_accelerate_config(const YamlNode& root);

// `folder`: that of the file, from which the path of a DeepSpeed configuration goes.
ImportedConfig import_accelerate_config(const YamlNode& root, const std::string& folder);

}  // namespace partita
