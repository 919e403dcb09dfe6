// Megatron-LM's arguments, those of torchrun beside them, as a launch script has them.
// Source: github.com/NVIDIA/Megatron-LM, megatron/training/arguments.py.
#pragma once

#include "ir/recipe/config_keys.h"

namespace partita {

// `root`: of parse_shell_arguments().
ImportedConfig import_megatron_arguments(const YamlNode& root);

}  // namespace partita
