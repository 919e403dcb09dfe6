// Configurations of other training programs as a train.yaml, with a word on every key.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "ir/recipe/config_keys.h"

namespace partita {

// Reads a file in the format that its name and keys tell, or that `format` says: deepspeed, accelerate, torchtitan or
// megatron. InvalidArgument where it cannot be read ("file:line:column: …") or is of no such program; a key that is
// refused is no error here.
absl::StatusOr<ImportedConfig> import_config(const std::string& path, const std::string& format);

// What became of each key, in groups: taken, defaults, without effect, open, refused.
std::string format_report(const ImportedConfig& config, const std::string& path);

// The recipe as train.yaml, with the flags of a run in its first lines.
std::string format_train_yaml(const ImportedConfig& config, const std::string& path);

// The command that trains with the recipe at `recipe`.
std::string command_of(const ImportedConfig& config, const std::string& recipe);

}  // namespace partita
