#include "ir/recipe/overrides.h"

#include <algorithm>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"

namespace partita {
namespace {

using Node = std::shared_ptr<const YamlNode>;

// `node` with `value` at the dotted key; nullptr where it leads through something that is no mapping.
Node replaced(const Node& node, std::string_view key, const Node& value) {
  if (node->kind != YamlNode::Kind::kMapping && node->kind != YamlNode::Kind::kNull) return nullptr;
  const size_t dot = key.find('.');
  const std::string first(key.substr(0, dot));
  auto copy = std::make_shared<YamlNode>(*node);
  copy->kind = YamlNode::Kind::kMapping;
  auto at =
      std::find_if(copy->entries.begin(), copy->entries.end(), [&](const YamlEntry& e) { return e.key == first; });
  if (at == copy->entries.end()) {
    copy->entries.push_back({first, value->line, value->column, std::make_shared<YamlNode>()});
    at = std::prev(copy->entries.end());
  }
  at->value = dot == key.npos ? value : replaced(at->value, key.substr(dot + 1), value);
  return at->value == nullptr ? nullptr : copy;
}

bool says_kind(const YamlNode& section) {
  return std::any_of(section.entries.begin(), section.entries.end(),
                     [](const YamlEntry& e) { return e.key == "kind"; });
}

}  // namespace

Node merged(const Node& base, const Node& over) {
  if (over->kind == YamlNode::Kind::kNull) return base;
  if (base->kind != YamlNode::Kind::kMapping || over->kind != YamlNode::Kind::kMapping || says_kind(*over)) return over;
  auto copy = std::make_shared<YamlNode>(*base);
  for (const YamlEntry& entry : over->entries) {
    auto at = std::find_if(copy->entries.begin(), copy->entries.end(),
                           [&](const YamlEntry& e) { return e.key == entry.key; });
    if (at == copy->entries.end())
      copy->entries.push_back(entry);
    else
      *at = {entry.key, entry.line, entry.column, merged(at->value, entry.value)};
  }
  return copy;
}

absl::StatusOr<Node> with_overrides(Node root, const std::vector<std::string>& sets) {
  for (const std::string& text : sets) {
    auto refuse = [&](std::string_view why) {
      return absl::InvalidArgumentError(cat("--set ", quote(text), ": ", why));
    };
    const size_t equals = text.find('=');
    if (equals == text.npos || equals == 0 || text[0] == '.' || text[equals - 1] == '.')
      return refuse("expected KEY=VALUE, as in optimizer.lr=1e-4");
    const auto value = parse_yaml(std::string_view(text).substr(equals + 1));
    if (!value.ok()) return refuse(std::string(value.status().message()));
    root = replaced(root, std::string_view(text).substr(0, equals), *value);
    if (root == nullptr) return refuse("the file has something other than a section there");
  }
  return root;
}

}  // namespace partita
