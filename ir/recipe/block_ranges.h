// Numbers of blocks as people write them: "0..3", "7".
#pragma once

#include <string>
#include <vector>

#include "ir/recipe/recipe.h"
#include "ir/yaml/yaml_document.h"

namespace partita {

// The blocks that have `mode`, ascending: {"0..3", "7"}.
std::vector<std::string> block_ranges(const std::vector<RecomputeMode>& blocks, RecomputeMode mode);

// {full: 0..3, mlp: [4, 6..7]}: the mode of each block; of those in between that it leaves out: none. InvalidArgument
// where it is none, or names a block twice.
absl::StatusOr<std::vector<RecomputeMode>> parse_block_modes(const YamlNode& node, const std::string& path);

}  // namespace partita
