// Keys of a settings file said over again, from the command line.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/yaml/yaml_document.h"

namespace partita {

// The tree with "a.b=VALUE" each in place of what it has under that key; sections that it has not are made. VALUE is
// YAML. InvalidArgument where a text has no key, or no YAML, or goes through what is no mapping.
absl::StatusOr<std::shared_ptr<const YamlNode>> with_overrides(std::shared_ptr<const YamlNode> root,
                                                               const std::vector<std::string>& sets);

// `base` with what `over` says: sections key by key, but for those of which `over` says the `kind`, which are its
// alone.
std::shared_ptr<const YamlNode> merged(const std::shared_ptr<const YamlNode>& base,
                                       const std::shared_ptr<const YamlNode>& over);

}  // namespace partita
