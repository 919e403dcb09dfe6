// Configurations of other programs, read key by key against a table: what each key becomes here, or why it has no
// effect, or why it is refused. No key is passed over in silence.
#pragma once

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ir/recipe/recipe.h"
#include "ir/yaml/yaml_document.h"
#include "ir/yaml/yaml_fields.h"

namespace partita {

enum class KeyFate {
  kTaken,    // it became a key of the recipe, a pin or a flag
  kIdle,     // nothing here depends on it
  kOpen,     // "auto" or nothing: nobody fills it in here, so the default holds
  kDefault,  // not said, and taken over all the same: the program's own default, which is another than ours
  kRefused,  // what it asks for is not done here
};
struct KeyOutcome {
  KeyFate fate = KeyFate::kTaken;
  std::string says;  // "pin.zero", "--ranks 8"; or the reason
};
struct ImportedKey : KeyOutcome {
  std::string key, value;    // "zero_optimization.stage", "3"
  int line = 0, column = 0;  // of the value
};

// A configuration as this program has it.
struct ImportedConfig {
  std::string program;  // "DeepSpeed"
  Recipe recipe;
  std::optional<int64_t> ranks, nodes;     // devices over all hosts, and hosts
  std::vector<std::string> flags, launch;  // of the run, "--log-every", "10"; and of `partita launch`
  std::vector<ImportedKey> keys;           // in file order, defaults last
};

// Takes a value into T. An error, "line:column: path: expected …", refuses the key.
template <typename T>
using KeyReader = std::function<absl::StatusOr<KeyOutcome>(const YamlNode&, const std::string& path, T&)>;
template <typename T>
struct KeyRow {
  std::string key;  // with the sections around it: "zero_optimization.stage"
  KeyReader<T> read;
};
template <typename T>
using KeyRows = std::vector<KeyRow<T>>;

// It becomes `target`.
template <typename T>
KeyReader<T> becomes(std::string target, FieldParser<T> parse) {
  return [target, parse](const YamlNode& node, const std::string& path, T& out) -> absl::StatusOr<KeyOutcome> {
    PARTITA_RETURN_IF_ERROR(parse(node, path, out));
    return KeyOutcome{KeyFate::kTaken, target};
  };
}
// It has no effect, whatever it says.
template <typename T>
KeyReader<T> idle(std::string why) {
  return [why](const YamlNode&, const std::string&, T&) -> absl::StatusOr<KeyOutcome> {
    return KeyOutcome{KeyFate::kIdle, why};
  };
}
// It has no effect where it says one of `values`, and is refused else: `instead` is what to do.
template <typename T>
KeyReader<T> idle_at(std::vector<std::string> values, std::string why, std::string instead) {
  return [values, why, instead](const YamlNode& node, const std::string& path, T&) -> absl::StatusOr<KeyOutcome> {
    std::string expected;
    for (const std::string& v : values) {
      if (node.kind == YamlNode::Kind::kScalar && node.text == v) return KeyOutcome{KeyFate::kIdle, why};
      expected += (expected.empty() ? "" : " or ") + v;
    }
    return unexpected(node, path, expected + " (" + instead + ")");
  };
}
// It is refused: `instead` is what to do.
template <typename T>
KeyReader<T> refused(std::string instead) {
  return [instead](const YamlNode& node, const std::string& path, T&) -> absl::StatusOr<KeyOutcome> {
    return yaml_error(node.line, node.column, path + ": " + instead);
  };
}

// Parts of T, which has an ImportedConfig `config`.
template <typename T>
FieldParser<T> in_recipe(FieldParser<Recipe> parse) {
  return
      [parse](const YamlNode& node, const std::string& path, T& out) { return parse(node, path, out.config.recipe); };
}
template <typename T>
FieldParser<T> in_pins(FieldParser<PinRecipe> parse) {
  return in_recipe<T>(
      [parse](const YamlNode& node, const std::string& path, Recipe& out) { return parse(node, path, out.pin); });
}
template <typename T>
FieldParser<T> in_batch(std::optional<int64_t> BatchRecipe::*member) {
  return in_recipe<T>([member](const YamlNode& node, const std::string& path, Recipe& out) {
    return integer(member, 1)(node, path, out.batch);
  });
}
// A member of T.
template <typename T, typename M>
FieldParser<T> within(M T::*member, FieldParser<M> parse) {
  return
      [member, parse](const YamlNode& node, const std::string& path, T& out) { return parse(node, path, out.*member); };
}
// One of the betas of T's OptimizerRule `rule`.
template <typename T>
FieldParser<T> beta(size_t k) {
  return [k](const YamlNode& node, const std::string& path, T& out) -> absl::Status {
    PARTITA_ASSIGN_OR_RETURN(out.rule.betas[k], read_number(node, path, kFraction));
    return absl::OkStatus();
  };
}
// A number of ranks along an axis: `pin.NAME`.
template <typename T>
KeyReader<T> axis_pin(std::string name) {
  return [name](const YamlNode& node, const std::string& path, T& out) -> absl::StatusOr<KeyOutcome> {
    PARTITA_ASSIGN_OR_RETURN(out.config.recipe.pin.axes[name], read_integer(node, path, 1, 1 << 24));
    return KeyOutcome{KeyFate::kTaken, "pin." + name};
  };
}
// `--flag VALUE` of the run.
template <typename T>
KeyReader<T> run_flag(std::string name) {
  return [name](const YamlNode& node, const std::string& path, T& out) -> absl::StatusOr<KeyOutcome> {
    PARTITA_ASSIGN_OR_RETURN(const std::string value, read_text(node, path));
    out.config.flags.insert(out.config.flags.end(), {name, value});
    return KeyOutcome{KeyFate::kTaken, name + " " + value};
  };
}
// A norm of all gradients; 0 clips nothing.
template <typename T>
KeyReader<T> clipping() {
  return [](const YamlNode& node, const std::string& path, T& out) -> absl::StatusOr<KeyOutcome> {
    PARTITA_ASSIGN_OR_RETURN(const double norm, read_number(node, path, kNonNegative));
    if (norm == 0) return KeyOutcome{KeyFate::kIdle, "nothing is clipped"};
    out.config.recipe.clip_grad_norm = norm;
    return KeyOutcome{KeyFate::kTaken, "clip_grad_norm"};
  };
}
// One of several texts, each with what it stands for.
template <typename T>
struct Meaning {
  std::string_view text;
  KeyOutcome outcome;
  std::function<void(T&)> apply = nullptr;
};
template <typename T>
KeyReader<T> one_of(std::vector<Meaning<T>> meanings, std::string instead = "") {
  return [meanings, instead](const YamlNode& node, const std::string& path, T& out) -> absl::StatusOr<KeyOutcome> {
    std::string expected;
    for (const Meaning<T>& m : meanings) {
      if (node.kind == YamlNode::Kind::kScalar && node.text == m.text) {
        if (m.apply) m.apply(out);
        return m.outcome;
      }
      expected += (expected.empty() ? "" : ", ") + std::string(m.text);
    }
    return unexpected(node, path, "one of " + expected + (instead.empty() ? "" : " (" + instead + ")"));
  };
}

// The same reader for several keys of a section ("zero_optimization.").
template <typename T>
void add_rows(KeyRows<T>& rows, std::initializer_list<std::string_view> keys, const KeyReader<T>& read,
              std::string_view section = "") {
  for (std::string_view key : keys) rows.push_back({std::string(section) + std::string(key), read});
}

// Whether a value leaves its key open: nothing, or "auto".
bool is_open(const YamlNode& node);
// "3", "[0.9, 0.999]", "{stage, offload_param}", shortened.
std::string value_text(const YamlNode& node);
// The message of a yaml_error() without its place.
std::string_view without_place(std::string_view message);
// What a refusal says of an error, which may begin with a place.
ImportedKey refusal(std::string key, const YamlNode& node, const absl::Status& status);
// Changes what became of a key, one that was read or, where it was not, of the whole file.
void refuse_key(std::vector<ImportedKey>& keys, std::string_view key, std::string_view why);
// Notes a default of the program's that is taken over because the file does not say the key.
void note_default(std::vector<ImportedKey>& keys, std::string_view key, std::string_view value, std::string_view says);
bool has_key(const std::vector<ImportedKey>& keys, std::string_view key);
// The first refused key as an error, "line:column: key: …".
absl::Status first_refusal(const std::vector<ImportedKey>& keys);

// Reads the keys of `node`, a mapping at `path`, and of the sections below it that have rows. An unknown key is refused
// with the nearest that is known.
template <typename T>
void import_keys(const YamlNode& node, const std::string& path, const KeyRows<T>& rows, T& out,
                 std::vector<ImportedKey>& keys) {
  if (node.kind != YamlNode::Kind::kMapping) {
    if (!is_open(node)) keys.push_back(refusal(path, node, unexpected(node, path, "a mapping")));
    return;
  }
  const std::string front = path.empty() ? "" : path + ".";
  for (const YamlEntry& entry : node.entries) {
    const std::string key = front + entry.key, below = key + ".";
    const KeyRow<T>* found = nullptr;
    bool section = false;
    std::vector<std::string_view> known;
    for (const KeyRow<T>& row : rows) {
      if (row.key == key) found = &row;
      section |= row.key.starts_with(below);
      if (!row.key.starts_with(front)) continue;
      const std::string_view rest = std::string_view(row.key).substr(front.size());
      const std::string_view name = rest.substr(0, rest.find('.'));
      if (std::find(known.begin(), known.end(), name) == known.end()) known.push_back(name);
    }
    ImportedKey line{{KeyFate::kOpen, ""}, key, value_text(*entry.value), entry.value->line, entry.value->column};
    if (found == nullptr && section && !is_open(*entry.value)) {
      import_keys(*entry.value, key, rows, out, keys);
      continue;
    }
    if (found == nullptr && !section) {
      line = refusal(join_path(path, entry.key), *entry.value, unknown_key(entry, path, known));
    } else if (found != nullptr && !is_open(*entry.value)) {
      absl::StatusOr<KeyOutcome> outcome = found->read(*entry.value, key, out);
      if (outcome.ok())
        static_cast<KeyOutcome&>(line) = *std::move(outcome);
      else
        line = refusal(key, *entry.value, outcome.status());
    }
    keys.push_back(std::move(line));
  }
}

}  // namespace partita
