#include "ir/yaml/yaml_fields.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/cat.h"
#include "base/quote.h"

namespace partita {
namespace {

constexpr size_t kMaxGlobBytes = 1024;

std::string describe(const YamlNode& node) {
  switch (node.kind) {
    case YamlNode::Kind::kNull:
      return "nothing";
    case YamlNode::Kind::kScalar:
      return cat(node.quoted ? "the text " : "", quote(node.text));
    case YamlNode::Kind::kSequence:
      return cat("a list of ", node.items.size());
    case YamlNode::Kind::kMapping:
      return "a mapping";
  }
  return "";
}

// Decimal notation only: no hexadecimal, no infinity, no NaN, no digits separators.
bool is_decimal(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789+-.eE") == std::string_view::npos &&
         text.find_first_of("0123456789") != std::string_view::npos;
}

// The whole of `text`, which may begin with a plus sign.
template <typename T>
bool parse_whole(std::string_view text, T& value) {
  if (text.starts_with('+')) text.remove_prefix(1);
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

absl::Status unexpected(const YamlNode& node, std::string_view path, std::string_view expected) {
  return yaml_error(node.line, node.column, cat(path, ": expected ", expected, ", found ", describe(node)));
}

std::string join_path(std::string_view path, std::string_view key) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
  std::string shown =
      key.find_first_not_of(kPlain) == std::string_view::npos && key.size() <= 64 ? std::string(key) : quote(key);
  return path.empty() ? shown : cat(path, ".", shown);
}

absl::StatusOr<double> read_number(const YamlNode& node, std::string_view path, const NumberRange& range) {
  double value = 0;
  if (node.kind != YamlNode::Kind::kScalar || node.quoted || !is_decimal(node.text) || !parse_whole(node.text, value) ||
      !std::isfinite(value) || !range.holds(value)) {
    return unexpected(node, path, range.says);
  }
  return value;
}

absl::StatusOr<int64_t> read_integer(const YamlNode& node, std::string_view path, int64_t low, int64_t high) {
  int64_t value = 0;
  double real = 0;
  bool ok = node.kind == YamlNode::Kind::kScalar && !node.quoted && is_decimal(node.text);
  if (ok && !parse_whole(node.text, value)) {
    bool exponent = node.text.find_first_of("eE") != std::string::npos;
    ok = exponent && parse_whole(node.text, real) && std::abs(real) <= 0x1p53 && real == std::floor(real);
    value = ok ? static_cast<int64_t>(real) : 0;
  }
  if (ok && low <= value && value <= high) return value;
  bool open_end = high >= kLargestCount && (!ok || value < low);
  return unexpected(node, path, open_end ? cat("an integer >= ", low) : cat("an integer from ", low, " to ", high));
}

absl::StatusOr<bool> read_bool(const YamlNode& node, std::string_view path) {
  if (node.kind == YamlNode::Kind::kScalar && !node.quoted) {
    if (node.text == "true" || node.text == "True" || node.text == "TRUE") return true;
    if (node.text == "false" || node.text == "False" || node.text == "FALSE") return false;
  }
  return unexpected(node, path, "true or false");
}

absl::StatusOr<std::string> read_text(const YamlNode& node, std::string_view path) {
  if (node.kind != YamlNode::Kind::kScalar || node.text.empty()) return unexpected(node, path, "a name");
  return node.text;
}

absl::StatusOr<size_t> read_choice(const YamlNode& node, std::string_view path,
                                   std::span<const std::string_view> choices) {
  auto found =
      node.kind == YamlNode::Kind::kScalar ? std::find(choices.begin(), choices.end(), node.text) : choices.end();
  if (found == choices.end())
    return unexpected(node, path, cat(choices.size() > 1 ? "one of " : "", join_names(choices)));
  return static_cast<size_t>(found - choices.begin());
}

absl::Status check_glob(const YamlNode& node, std::string_view path, std::string_view glob) {
  if (!glob.empty() && glob.size() <= kMaxGlobBytes) return absl::OkStatus();
  return unexpected(node, path, cat("a name pattern of 1 to ", kMaxGlobBytes, " bytes"));
}

absl::StatusOr<std::vector<std::string>> read_globs(const YamlNode& node, std::string_view path) {
  std::vector<std::string> result;
  auto add = [&](const YamlNode& item) -> absl::Status {
    if (item.kind != YamlNode::Kind::kScalar) return unexpected(item, path, "a name pattern");
    result.push_back(item.text);
    return check_glob(item, path, item.text);
  };
  if (node.kind == YamlNode::Kind::kNull) return result;
  if (node.kind == YamlNode::Kind::kScalar) {
    PARTITA_RETURN_IF_ERROR(add(node));
    return result;
  }
  if (node.kind != YamlNode::Kind::kSequence) return unexpected(node, path, "a list of name patterns");
  for (const auto& item : node.items) PARTITA_RETURN_IF_ERROR(add(*item));
  return result;
}

std::string join_names(std::span<const std::string_view> names) {
  std::string joined;
  for (std::string_view name : names) append(joined, joined.empty() ? "" : ", ", name);
  return joined;
}

absl::Status unknown_key(const YamlEntry& entry, std::string_view path, std::span<const std::string_view> known) {
  std::string near = nearest_name(entry.key, std::vector<std::string>(known.begin(), known.end()));
  std::string advice =
      near.empty() ? cat("the known keys are ", join_names(known)) : cat("the nearest known key is '", near, "'");
  return yaml_error(entry.line, entry.column,
                    cat(path, path.empty() ? "" : ": ", "unknown key ", quote(entry.key, 80), "; ", advice));
}

absl::StatusOr<std::vector<const YamlEntry*>> match_keys(const YamlNode& node, std::string_view path,
                                                         const std::vector<std::string_view>& keys) {
  std::vector<const YamlEntry*> found(keys.size(), nullptr);
  if (node.kind == YamlNode::Kind::kNull) return found;
  if (node.kind != YamlNode::Kind::kMapping) return unexpected(node, path.empty() ? "the file" : path, "a mapping");
  for (const YamlEntry& entry : node.entries) {
    auto key = std::find(keys.begin(), keys.end(), entry.key);
    if (key == keys.end()) return unknown_key(entry, path, keys);
    found[key - keys.begin()] = &entry;
  }
  return found;
}

const YamlEntry* find_entry(const YamlNode& node, std::string_view key) {
  for (const YamlEntry& entry : node.entries) {
    if (entry.key == key) return &entry;
  }
  return nullptr;
}

absl::Status check_applicable(const YamlNode& node, const std::string& path, std::string_view kind, KeyList conditional,
                              KeyList allowed) {
  for (std::string_view key : conditional) {
    const YamlEntry* entry = find_entry(node, key);
    if (entry == nullptr || std::find(allowed.begin(), allowed.end(), key) != allowed.end()) continue;
    return yaml_error(entry->line, entry->column, cat(path, ": kind ", kind, " has no '", key, "'; remove it"));
  }
  return absl::OkStatus();
}

}  // namespace partita
