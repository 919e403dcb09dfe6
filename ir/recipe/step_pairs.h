// What a recipe says of steps: [[step, value], …].
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "ir/yaml/yaml_fields.h"

namespace partita {

// Calls take(step, value's node, its path) for 1 to `most` pairs, whose steps ascend from 0. `pair`: one in words, as
// "[step, samples]". Errors: another form, other steps, take's.
absl::Status read_step_pairs(const YamlNode& node, const std::string& path, size_t most, const std::string& pair,
                             const std::function<absl::Status(int64_t, const YamlNode&, const std::string&)>& take);

}  // namespace partita
