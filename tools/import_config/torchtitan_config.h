// torchtitan's configuration, a TOML file.
// Source: github.com/pytorch/torchtitan, torchtitan/config/job_config.py and torchtitan/components/lr_scheduler.py.
#pragma once

#include "ir/recipe/config_keys.h"

namespace partita {

ImportedConfig import_torchtitan_config(const YamlNode& root);

}  // namespace partita
