#include "tools/import_config/shell_arguments.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/cat.h"
#include "base/status.h"

namespace partita {
namespace {

constexpr int kDeepest = 8;  // variables within variables

struct Word {
  std::string text;
  int line = 1, column = 1;
  bool first = false;   // of its command
  bool opaque = false;  // in single quotes: nothing in it is replaced
};

bool is_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// Words of all commands: comments and continued lines gone, quotes taken off, parentheses around a list too.
absl::StatusOr<std::vector<Word>> split(std::string_view text) {
  std::vector<Word> words;
  Word word;
  bool open = false, first = true;
  int line = 1, list = 0;
  size_t begin = 0;
  auto end_word = [&] {
    if (open) words.push_back(word);
    if (open) first = false;
    word = {};
    open = false;
  };
  auto start = [&](size_t at) {
    if (!open) word.line = line, word.column = static_cast<int>(at - begin) + 1, word.first = first;
    open = true;
  };
  for (size_t k = 0; k < text.size(); ++k) {
    const char c = text[k];
    if (c == '\\' && k + 1 < text.size()) {
      ++k;
      if (text[k] == '\r' && k + 1 < text.size()) ++k;
      if (text[k] == '\n') {
        end_word();
        ++line, begin = k + 1;
      } else {
        start(k);
        word.text += text[k];
      }
    } else if (c == '"' || c == '\'') {
      start(k);
      word.opaque |= c == '\'';
      const int from = line, column = static_cast<int>(k - begin) + 1;
      for (++k; k < text.size() && text[k] != c; ++k) {
        if (text[k] == '\n') ++line, begin = k + 1;
        const bool joined = c == '"' && text[k] == '\\' && k + 1 < text.size() && text[k + 1] == '\n';
        if (!joined) word.text += text[k] == '\n' ? ' ' : text[k];
      }
      if (k == text.size()) return yaml_error(from, column, "the quote does not end");
    } else if (c == '#' && !open) {
      while (k + 1 < text.size() && text[k + 1] != '\n') ++k;
    } else if (c == '(' && open && word.text.ends_with('=')) {
      ++list;  // NAME=( … ): its words belong to the name before
      word.text += '(';
      end_word();
    } else if (c == ')' && list > 0) {
      end_word();
      --list;
      words.push_back({")", line, static_cast<int>(k - begin) + 1, false, false});
    } else if (c == ' ' || c == '\t' || c == '\r') {
      end_word();
    } else if (c == '\n' || c == ';') {
      end_word();
      if (list == 0) first = true;
      if (c == '\n') ++line, begin = k + 1;
    } else {
      start(k);
      word.text += c;
    }
  }
  end_word();
  return words;
}

class Expander {
 public:
  // Takes the settings out of the words; those that are left are arguments.
  std::vector<Word> settle(const std::vector<Word>& words) {
    std::vector<Word> rest;
    for (size_t k = 0; k < words.size(); ++k) {
      const Word& w = words[k];
      const size_t equals = w.text.find('=');
      const bool sets = w.first && equals != std::string::npos && equals > 0 &&
                        std::all_of(w.text.begin(), w.text.begin() + static_cast<int64_t>(equals), is_name);
      if (!sets) {
        rest.push_back(w);
      } else if (w.text.ends_with("=(")) {
        std::vector<Word>& list = values_[w.text.substr(0, equals)];
        list.clear();
        for (++k; k < words.size() && words[k].text != ")"; ++k) list.push_back(words[k]);
      } else {
        values_[w.text.substr(0, equals)] = {{w.text.substr(equals + 1), w.line, w.column, false, w.opaque}};
      }
    }
    return rest;
  }

  void expand(const Word& w, std::vector<Word>& out, int depth = 0) const {
    const std::string name = whole_variable(w.text);
    const auto at = values_.find(name);
    if (at != values_.end() && !w.opaque && depth < kDeepest) {
      for (const Word& part : at->second) {
        for (size_t begin = 0; begin < part.text.size();) {  // a text of several words
          const size_t end = std::min(part.text.find(' ', begin), part.text.size());
          Word one = part;
          one.text = part.text.substr(begin, end - begin);
          if (at->second.size() == 1) one.line = w.line, one.column = w.column;
          if (!one.text.empty()) expand(one, out, depth + 1);
          begin = end + 1;
        }
      }
      return;
    }
    Word one = w;
    if (!w.opaque) one.text = replaced(w.text, depth);
    out.push_back(one);
  }

 private:
  // "$TP", "${TP}", "${ARGS[@]}" -> the name; "" where the word is more, or something else.
  static std::string whole_variable(std::string_view text) {
    if (!text.starts_with('$')) return "";
    text.remove_prefix(1);
    if (text.starts_with('{') && text.ends_with('}')) {
      text = text.substr(1, text.size() - 2);
      for (std::string_view end : {"[@]", "[*]"}) {
        if (text.ends_with(end)) text.remove_suffix(end.size());
      }
    }
    const bool all = !text.empty() && std::all_of(text.begin(), text.end(), is_name);
    return all ? std::string(text) : "";
  }

  // Variables within a word, of one word each.
  std::string replaced(const std::string& text, int depth) const {
    std::string out;
    for (size_t k = 0; k < text.size(); ++k) {
      const bool braced = text.substr(k, 2) == "${";
      size_t end = k + (braced ? 2 : 1);
      while (end < text.size() && is_name(text[end])) ++end;
      const size_t from = k + (braced ? 2 : 1);
      const auto at = text[k] == '$' && end > from ? values_.find(text.substr(from, end - from)) : values_.end();
      if (at == values_.end() || at->second.size() != 1 || depth >= kDeepest) {
        out += text[k];
        continue;
      }
      out += replaced(at->second[0].text, depth + 1);
      k = braced && end < text.size() && text[end] == '}' ? end : end - 1;
    }
    return out;
  }

  std::map<std::string, std::vector<Word>> values_;
};

std::shared_ptr<YamlNode> scalar(const Word& w, std::string text) {
  auto node = std::make_shared<YamlNode>();
  node->kind = YamlNode::Kind::kScalar;
  node->text = std::move(text);
  node->line = w.line;
  node->column = w.column;
  return node;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const YamlNode>> parse_shell_arguments(std::string_view text) {
  PARTITA_ASSIGN_OR_RETURN(const std::vector<Word> words, split(text));
  Expander expander;
  std::vector<Word> all;
  for (const Word& w : expander.settle(words)) expander.expand(w, all);
  auto root = std::make_shared<YamlNode>();
  root->kind = YamlNode::Kind::kMapping;
  for (size_t k = 0; k < all.size(); ++k) {
    if (!all[k].text.starts_with("--") || all[k].text.size() < 3) continue;
    const Word& w = all[k];
    const size_t equals = w.text.find('=');
    std::string name = w.text.substr(2, equals == std::string::npos ? equals : equals - 2);
    std::replace(name.begin(), name.end(), '_', '-');
    std::vector<std::shared_ptr<const YamlNode>> values;
    if (equals != std::string::npos) values.push_back(scalar(w, w.text.substr(equals + 1)));
    while (k + 1 < all.size() && !all[k + 1].first && !all[k + 1].text.starts_with("--") &&
           !all[k + 1].text.ends_with(".py")) {
      ++k;
      values.push_back(scalar(all[k], all[k].text));
    }
    std::shared_ptr<const YamlNode> value = values.empty() ? scalar(w, "true") : values[0];
    if (values.size() > 1) {
      auto list = std::make_shared<YamlNode>(*scalar(w, ""));
      list->kind = YamlNode::Kind::kSequence;
      list->items = values;
      value = list;
    }
    std::erase_if(root->entries, [&](const YamlEntry& e) { return e.key == name; });
    root->entries.push_back({name, w.line, w.column, value});
  }
  return std::shared_ptr<const YamlNode>(root);
}

}  // namespace partita
