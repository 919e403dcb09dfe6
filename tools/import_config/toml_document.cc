#include "tools/import_config/toml_document.h"

#include <algorithm>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"

namespace partita {
namespace {

using Kind = YamlNode::Kind;
constexpr int kDeepest = 32;

bool is_bare(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-'; }

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  absl::StatusOr<std::shared_ptr<const YamlNode>> read() {
    root_ = mapping();
    std::shared_ptr<YamlNode> table = root_;
    for (skip_lines(); !at_end(); skip_lines()) {
      if (peek() == '[') {
        PARTITA_ASSIGN_OR_RETURN(table, read_header());
      } else {
        PARTITA_RETURN_IF_ERROR(read_pair(table));
      }
      skip_blanks();
      if (!at_end() && peek() != '\n') return fail("expected the end of the line");
    }
    return std::shared_ptr<const YamlNode>(root_);
  }

 private:
  bool at_end() const { return at_ >= text_.size(); }
  char peek() const { return at_end() ? '\0' : text_[at_]; }
  char take() {
    const char c = peek();
    ++at_;
    if (c == '\n') ++line_, line_begin_ = at_;
    return c;
  }
  bool take_if(char c) { return peek() == c && !at_end() ? (take(), true) : false; }
  int column() const { return static_cast<int>(at_ - line_begin_) + 1; }
  absl::Status fail(std::string_view why) const { return yaml_error(line_, column(), why); }

  // Blanks and a comment up to the end of the line.
  void skip_blanks() {
    while (peek() == ' ' || peek() == '\t' || peek() == '\r') take();
    if (peek() == '#') {
      while (!at_end() && peek() != '\n') take();
    }
  }
  void skip_lines() {
    for (skip_blanks(); take_if('\n'); skip_blanks()) {
    }
  }

  std::shared_ptr<YamlNode> node(Kind kind) const {
    auto made = std::make_shared<YamlNode>();
    made->kind = kind;
    made->line = line_;
    made->column = column();
    return made;
  }
  std::shared_ptr<YamlNode> mapping() const { return node(Kind::kMapping); }

  // The table that a table has under a key; a new one where there is none.
  absl::StatusOr<std::shared_ptr<YamlNode>> table_in(const std::shared_ptr<YamlNode>& table, const std::string& key) {
    for (YamlEntry& e : table->entries) {
      if (e.key != key) continue;
      if (e.value->kind != Kind::kMapping) return fail(cat(quote(key), " is a value and a table"));
      return std::const_pointer_cast<YamlNode>(e.value);  // of this reader's own
    }
    auto made = mapping();
    table->entries.push_back({key, line_, column(), made});
    return made;
  }

  absl::StatusOr<std::vector<std::string>> read_keys() {
    std::vector<std::string> keys;
    do {
      skip_blanks();
      std::string key;
      if (peek() == '"' || peek() == '\'') {
        PARTITA_ASSIGN_OR_RETURN(key, read_string());
      } else {
        while (is_bare(peek())) key += take();
      }
      if (key.empty()) return fail("expected a key");
      keys.push_back(key);
      skip_blanks();
    } while (take_if('.'));
    if (keys.size() > kDeepest) return fail("tables are nested too deep");
    return keys;
  }

  absl::StatusOr<std::shared_ptr<YamlNode>> read_header() {
    take();
    if (peek() == '[') return fail("an array of tables is not read here");
    PARTITA_ASSIGN_OR_RETURN(const std::vector<std::string> keys, read_keys());
    if (!take_if(']')) return fail("expected ']'");
    std::shared_ptr<YamlNode> table = root_;
    for (const std::string& key : keys) {
      PARTITA_ASSIGN_OR_RETURN(table, table_in(table, key));
    }
    return table;
  }

  absl::Status read_pair(std::shared_ptr<YamlNode> table) {
    const int line = line_, at = column();
    PARTITA_ASSIGN_OR_RETURN(const std::vector<std::string> keys, read_keys());
    for (size_t k = 0; k + 1 < keys.size(); ++k) {
      PARTITA_ASSIGN_OR_RETURN(table, table_in(table, keys[k]));
    }
    if (!take_if('=')) return fail("expected '='");
    skip_blanks();
    PARTITA_ASSIGN_OR_RETURN(auto value, read_value());
    const bool twice = std::any_of(table->entries.begin(), table->entries.end(),
                                   [&](const YamlEntry& e) { return e.key == keys.back(); });
    if (twice) return yaml_error(line, at, cat("the key ", quote(keys.back()), " is there twice"));
    table->entries.push_back({keys.back(), line, at, value});
    return absl::OkStatus();
  }

  absl::StatusOr<std::shared_ptr<const YamlNode>> read_value() {
    if (++depth_ > kDeepest) return fail("values are nested too deep");
    auto value = peek() == '[' ? read_array() : peek() == '{' ? read_inline_table() : read_scalar();
    --depth_;
    return value;
  }

  absl::StatusOr<std::shared_ptr<const YamlNode>> read_array() {
    auto array = node(Kind::kSequence);
    take();
    for (skip_lines(); !take_if(']'); skip_lines()) {
      PARTITA_ASSIGN_OR_RETURN(auto item, read_value());
      array->items.push_back(item);
      skip_lines();
      if (peek() != ']' && !take_if(',')) return fail("expected ',' or ']'");
    }
    return array;
  }

  absl::StatusOr<std::shared_ptr<const YamlNode>> read_inline_table() {
    auto table = mapping();
    take();
    for (skip_blanks(); !take_if('}'); skip_blanks()) {
      PARTITA_RETURN_IF_ERROR(read_pair(table));
      skip_blanks();
      if (peek() != '}' && !take_if(',')) return fail("expected ',' or '}'");
    }
    return table;
  }

  absl::StatusOr<std::shared_ptr<const YamlNode>> read_scalar() {
    auto scalar = node(Kind::kScalar);
    if (peek() == '"' || peek() == '\'') {
      scalar->quoted = true;
      PARTITA_ASSIGN_OR_RETURN(scalar->text, read_string());
      return scalar;
    }
    while (is_bare(peek()) || peek() == '.' || peek() == '+' || peek() == ':') {
      const char c = take();
      if (c != '_' || scalar->text.empty()) scalar->text += c;  // 1_000
    }
    if (scalar->text != "true" && scalar->text != "false" &&
        scalar->text.find_first_not_of("0123456789+-.eE") != std::string::npos)
      return fail(cat("expected a string, number, true, false, array or table, found ", quote(scalar->text)));
    if (scalar->text.empty()) return fail("expected a value");
    return scalar;
  }

  absl::StatusOr<std::string> read_string() {
    const char end = take();
    if (text_.substr(at_, 2) == std::string(2, end)) return fail("a string of several lines is not read here");
    std::string out;
    while (peek() != end) {
      if (at_end() || peek() == '\n') return fail("the string does not end on its line");
      char c = take();
      if (c == '\\' && end == '"') {
        constexpr std::string_view kFrom = "\"\\nt", kTo = "\"\\\n\t";
        const size_t at = kFrom.find(take());
        if (at == std::string_view::npos) return fail("an escape other than \\\" \\\\ \\n \\t is not read here");
        c = kTo[at];
      }
      out += c;
    }
    take();
    return out;
  }

  std::string_view text_;
  size_t at_ = 0, line_begin_ = 0;
  int line_ = 1, depth_ = 0;
  std::shared_ptr<YamlNode> root_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const YamlNode>> parse_toml(std::string_view text) { return Reader(text).read(); }

}  // namespace partita
