// An untrusted YAML text as a small tree with positions. Everything that can make a YAML reader explode is refused
// before or while the tree grows.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace partita {

inline constexpr size_t kMaxYamlBytes = 16 << 20;
inline constexpr size_t kMaxYamlIndicators =
    1 << 18;  // characters that can start a token: bounds the reader's token queue
inline constexpr int kMaxYamlDepth = 64;
inline constexpr int kMaxYamlAliases = 1024;
inline constexpr int64_t kMaxYamlNodes = 1 << 18;  // counted with every alias expanded

struct YamlNode;
struct YamlEntry {
  std::string key;
  int line = 0, column = 0;  // of the key, from 1
  std::shared_ptr<const YamlNode> value;
};

struct YamlNode {
  enum class Kind { kNull, kScalar, kSequence, kMapping };
  Kind kind = Kind::kNull;
  int line = 1, column = 1;
  bool quoted = false;                                 // a scalar in quotes or a block scalar: never a number or a bool
  std::string text;                                    // of a scalar
  std::vector<std::shared_ptr<const YamlNode>> items;  // of a sequence
  std::vector<YamlEntry> entries;                      // of a mapping, in file order, keys unique
  int height = 1;                                      // levels, itself included
  int64_t size = 1;                                    // nodes below and itself, aliases expanded
};

// The one document in `text` (an empty one is a null node). Errors are InvalidArgument and begin with "line:column: ";
// refused are invalid UTF-8, control characters, tags, merge keys, keys that are not plain text, duplicate keys,
// several documents, aliases to an enclosing node, and whatever exceeds the limits above.
absl::StatusOr<std::shared_ptr<const YamlNode>> parse_yaml(std::string_view text);

// "line:column: message", InvalidArgument.
absl::Status yaml_error(int line, int column, std::string_view message);

}  // namespace partita
