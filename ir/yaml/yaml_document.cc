#include "ir/yaml/yaml_document.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <sstream>
#include <unordered_map>

#include "absl/container/flat_hash_set.h"
#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "fmt/format.h"

namespace partita {
namespace {

// Thrown by the builder through yaml-cpp's parser, which offers no other way to stop; caught in parse_yaml.
struct Refused {
  int line, column;
  std::string message;
};

[[noreturn]] void refuse(const YAML::Mark& mark, std::string message) {
  throw Refused{mark.line + 1, mark.column + 1, std::move(message)};
}

// What must hold before yaml-cpp sees the text. It queues every token of a flow collection that fits one line, and
// takes byte 4 for the end of input.
absl::Status check_characters(std::string_view text) {
  constexpr std::string_view kIndicators = "[]{},:-?&*!|>'\"%@`#\n\r";
  bool indicator[256] = {};
  for (unsigned char c : kIndicators) indicator[c] = true;
  size_t indicators = 0;
  int line = 1, column = 1;
  if (!is_utf8(text)) return yaml_error(1, 1, "not UTF-8; save the file as UTF-8");
  for (unsigned char c : text) {
    if ((c < 0x20 && c != '\t' && c != '\n' && c != '\r') || c == 0x7F)
      return yaml_error(line, column, fmt::format("control character 0x{:02x}", c));
    if (indicator[c] && ++indicators > kMaxYamlIndicators) {
      return yaml_error(line, column,
                        cat("more than ", kMaxYamlIndicators,
                            " brackets, commas, colons, quotes and lines: too large for a settings file"));
    }
    column = c == '\n' ? 1 : column + 1;
    line += c == '\n';
  }
  return absl::OkStatus();
}

// Grows the tree from events with one frame per open collection.
class TreeBuilder : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    add_leaf(mark, anchor, YamlNode::Kind::kNull, "", false);
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    check_tag(mark, tag);
    add_leaf(mark, anchor, YamlNode::Kind::kScalar, value, tag == "!");
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (++aliases_ > kMaxYamlAliases) refuse(mark, cat("more than ", kMaxYamlAliases, " aliases"));
    if (wants_key()) refuse(mark, "an alias cannot be a key");
    auto found = anchors_.find(anchor);
    if (found == anchors_.end()) refuse(mark, "an alias inside the node that it names");
    place(mark, found->second);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, YamlNode::Kind::kSequence);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, YamlNode::Kind::kMapping);
  }
  void OnMapEnd() override { close(); }

  std::shared_ptr<const YamlNode> root() const { return root_ ? root_ : std::make_shared<YamlNode>(); }

 private:
  struct Frame {
    std::shared_ptr<YamlNode> node;
    YAML::Mark mark;
    YAML::anchor_t anchor = 0;
    bool has_key = false;  // a mapping's last entry still lacks its value
    absl::flat_hash_set<std::string> keys;
  };

  static void check_tag(const YAML::Mark& mark, const std::string& tag) {
    if (!tag.empty() && tag != "?" && tag != "!")
      refuse(mark, cat("the tag ", quote(tag), " is not allowed here; remove it"));
  }
  bool wants_key() const {
    return !frames_.empty() && frames_.back().node->kind == YamlNode::Kind::kMapping && !frames_.back().has_key;
  }

  void add_leaf(const YAML::Mark& mark, YAML::anchor_t anchor, YamlNode::Kind kind, const std::string& text,
                bool quoted) {
    if (wants_key()) return add_key(mark, kind, text, quoted);
    auto leaf = std::make_shared<YamlNode>();
    leaf->kind = kind;
    bool missing =
        kind == YamlNode::Kind::kNull && !frames_.empty() && frames_.back().has_key;  // yaml-cpp gives it no position
    leaf->line = missing ? frames_.back().node->entries.back().line : mark.line + 1;
    leaf->column = missing ? frames_.back().node->entries.back().column : mark.column + 1;
    leaf->text = text;
    leaf->quoted = quoted;
    if (anchor != 0) anchors_[anchor] = leaf;
    place(mark, leaf);
  }

  void add_key(const YAML::Mark& mark, YamlNode::Kind kind, const std::string& text, bool quoted) {
    Frame& frame = frames_.back();
    if (kind != YamlNode::Kind::kScalar) refuse(mark, "a key must be a name, found null");
    if (text == "<<" && !quoted) refuse(mark, "merge keys '<<' are not supported; repeat the keys");
    if (!frame.keys.insert(text).second) refuse(mark, cat("duplicate key ", quote(text), "; keep one of the two"));
    frame.node->entries.push_back({text, mark.line + 1, mark.column + 1, nullptr});
    frame.has_key = true;
  }

  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, YamlNode::Kind kind) {
    check_tag(mark, tag);
    if (wants_key()) refuse(mark, "a key must be a name, found a list or a mapping");
    if (static_cast<int>(frames_.size()) >= kMaxYamlDepth)
      refuse(mark, cat("nested deeper than ", kMaxYamlDepth, " levels"));
    Frame& frame = frames_.emplace_back();
    frame.node = std::make_shared<YamlNode>();
    frame.node->kind = kind;
    frame.node->line = mark.line + 1;
    frame.node->column = mark.column + 1;
    frame.mark = mark;
    frame.anchor = anchor;
  }

  void close() {
    Frame frame = std::move(frames_.back());
    frames_.pop_back();
    if (frame.anchor != 0) anchors_[frame.anchor] = frame.node;
    place(frame.mark, std::move(frame.node));
  }

  void place(const YAML::Mark& mark, std::shared_ptr<const YamlNode> node) {
    if (static_cast<int>(frames_.size()) + node->height > kMaxYamlDepth)
      refuse(mark, cat("nested deeper than ", kMaxYamlDepth, " levels"));
    if (frames_.empty()) {
      root_ = std::move(node);
      return;
    }
    Frame& frame = frames_.back();
    frame.node->height = std::max(frame.node->height, node->height + 1);
    frame.node->size += node->size;
    if (frame.node->size > kMaxYamlNodes) refuse(mark, cat("more than ", kMaxYamlNodes, " values, aliases expanded"));
    if (frame.node->kind == YamlNode::Kind::kSequence) {
      frame.node->items.push_back(std::move(node));
    } else {
      frame.node->entries.back().value = std::move(node);
      frame.has_key = false;
    }
  }

  std::vector<Frame> frames_;
  std::unordered_map<YAML::anchor_t, std::shared_ptr<const YamlNode>> anchors_;
  std::shared_ptr<const YamlNode> root_;
  int aliases_ = 0;
};

// Stands for a second document, of which even the beginning is too much.
class NothingMore : public TreeBuilder {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override { refuse(mark, "a second document; keep one"); }
};

}  // namespace

absl::StatusOr<std::shared_ptr<const YamlNode>> parse_yaml(std::string_view text) {
  if (text.size() > kMaxYamlBytes)
    return yaml_error(1, 1, cat("larger than ", kMaxYamlBytes >> 20, " MiB: not a settings file"));
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  PARTITA_RETURN_IF_ERROR(check_characters(text));
  TreeBuilder builder;
  NothingMore nothing_more;
  std::istringstream stream{std::string(text)};
  try {
    YAML::Parser parser(stream);
    if (parser.HandleNextDocument(builder)) parser.HandleNextDocument(nothing_more);
  } catch (const Refused& refused) {
    return yaml_error(refused.line, refused.column, refused.message);
  } catch (const YAML::Exception& error) {
    return yaml_error(error.mark.line + 1, error.mark.column + 1, cat("not valid YAML: ", error.msg));
  }
  return builder.root();
}

absl::Status yaml_error(int line, int column, std::string_view message) {
  return absl::InvalidArgumentError(cat(line, ":", column, ": ", message));
}

}  // namespace partita
