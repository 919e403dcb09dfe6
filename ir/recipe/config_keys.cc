#include "ir/recipe/config_keys.h"

#include <algorithm>

#include "base/cat.h"
#include "base/quote.h"

namespace partita {
namespace {

constexpr size_t kLongestValue = 60;

}  // namespace

bool is_open(const YamlNode& node) {
  return node.kind == YamlNode::Kind::kNull || (node.kind == YamlNode::Kind::kScalar && node.text == "auto");
}

std::string value_text(const YamlNode& node) {
  std::string text = node.text;
  if (node.kind == YamlNode::Kind::kNull) text = "null";
  if (node.kind == YamlNode::Kind::kSequence) {
    for (const auto& item : node.items) append(text, text.empty() ? "[" : ", ", value_text(*item));
    text = text.empty() ? "[]" : text + "]";
  }
  if (node.kind == YamlNode::Kind::kMapping) {
    for (const YamlEntry& e : node.entries) append(text, text.empty() ? "{" : ", ", e.key, ": ", value_text(*e.value));
    text = text.empty() ? "{}" : text + "}";
  }
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text.size() > kLongestValue ? cat(text.substr(0, kLongestValue - 3), "...") : text;
}

std::string_view without_place(std::string_view message) {
  for (int k = 0; k < 2; ++k) {
    const size_t colon = message.find_first_not_of("0123456789");
    if (colon == 0 || colon == message.npos || message[colon] != ':') break;
    message.remove_prefix(colon + 1);
  }
  return message.substr(std::min(message.find_first_not_of(' '), message.size()));
}

ImportedKey refusal(std::string key, const YamlNode& node, const absl::Status& status) {
  const std::string message(status.message());
  return {{KeyFate::kRefused, std::string(without_place(message))},
          std::move(key),
          value_text(node),
          node.line,
          node.column};
}

bool has_key(const std::vector<ImportedKey>& keys, std::string_view key) {
  return std::any_of(keys.begin(), keys.end(),
                     [&](const ImportedKey& k) { return k.key == key && k.fate != KeyFate::kOpen; });
}

void refuse_key(std::vector<ImportedKey>& keys, std::string_view key, std::string_view why) {
  const std::string says = cat(key, ": ", why);
  for (ImportedKey& k : keys) {
    if (k.key != key) continue;
    k.fate = KeyFate::kRefused;
    k.says = says;
    return;
  }
  keys.push_back({{KeyFate::kRefused, says}, std::string(key), "", 1, 1});
}

void note_default(std::vector<ImportedKey>& keys, std::string_view key, std::string_view value, std::string_view says) {
  if (!has_key(keys, key))
    keys.push_back({{KeyFate::kDefault, std::string(says)}, std::string(key), std::string(value), 0, 0});
}

absl::Status first_refusal(const std::vector<ImportedKey>& keys) {
  for (const ImportedKey& k : keys) {
    if (k.fate == KeyFate::kRefused) return yaml_error(k.line, k.column, k.says);
  }
  return absl::OkStatus();
}

}  // namespace partita
