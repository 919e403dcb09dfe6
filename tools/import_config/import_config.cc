#include "tools/import_config/import_config.h"

#include <algorithm>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "base/text_file.h"
#include "fmt/format.h"
#include "ir/recipe/deepspeed_config.h"
#include "ir/recipe/write_recipe.h"
#include "tools/import_config/accelerate_config.h"
#include "tools/import_config/megatron_config.h"
#include "tools/import_config/shell_arguments.h"
#include "tools/import_config/toml_document.h"
#include "tools/import_config/torchtitan_config.h"

namespace partita {
namespace {

constexpr std::string_view kWhich =
    "a configuration of DeepSpeed (JSON with train_batch_size, zero_optimization, …), accelerate (YAML with "
    "compute_environment or distributed_type), torchtitan (TOML) or Megatron-LM (a script with --name value)";

// The format that a file's name or text tells; "" where neither does.
std::string guess(const std::string& path, std::string_view text) {
  if (path.ends_with(".toml")) return "torchtitan";
  if (path.ends_with(".sh") || path.ends_with(".args")) return "megatron";
  const auto root = parse_yaml(text);
  if (root.ok() && (*root)->kind == YamlNode::Kind::kMapping) {
    if (is_accelerate_config(**root)) return "accelerate";
    if (is_deepspeed_config(**root)) return "deepspeed";
    return "";
  }
  return text.find("--") == std::string_view::npos ? "" : "megatron";
}

absl::StatusOr<std::shared_ptr<const YamlNode>> parse(const std::string& format, std::string_view text) {
  if (format == "torchtitan") return parse_toml(text);
  if (format == "megatron") return parse_shell_arguments(text);
  return parse_yaml(text);
}

std::string folder_of(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : path.substr(0, slash);
}

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const std::string& w : words) append(out, " ", w);
  return out;
}

}  // namespace

absl::StatusOr<ImportedConfig> import_config(const std::string& path, const std::string& format) {
  const std::string shown = shown_path(path);
  PARTITA_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kMaxYamlBytes));
  if (text.size() > kMaxYamlBytes)
    return absl::InvalidArgumentError(cat(shown, ": is longer than ", kMaxYamlBytes, " bytes"));
  const std::string kind = format.empty() ? guess(path, text) : format;
  if (kind.empty()) return absl::InvalidArgumentError(cat(shown, ": expected ", kWhich, "; --format says which it is"));
  const auto root = parse(kind, text);
  if (!root.ok()) return absl::InvalidArgumentError(cat(shown, ":", std::string(root.status().message())));
  if ((*root)->kind != YamlNode::Kind::kMapping || (*root)->entries.empty())
    return absl::InvalidArgumentError(cat(shown, ": expected ", kWhich, ", found no keys"));
  ImportedConfig config = kind == "torchtitan"   ? import_torchtitan_config(**root)
                          : kind == "megatron"   ? import_megatron_arguments(**root)
                          : kind == "accelerate" ? import_accelerate_config(**root, folder_of(path))
                                                 : import_deepspeed_config(**root);
  return config;
}

std::string format_report(const ImportedConfig& config, const std::string& path) {
  constexpr std::pair<KeyFate, std::string_view> kGroups[] = {
      {KeyFate::kTaken, "becomes"},
      {KeyFate::kDefault, "not said, and taken over as a default of theirs"},
      {KeyFate::kIdle, "has no effect here"},
      {KeyFate::kOpen, "is left open (\"auto\", or nothing), so the default holds"},
      {KeyFate::kRefused, "is refused"},
  };
  size_t width = 0;
  for (const ImportedKey& k : config.keys) {
    if (k.fate != KeyFate::kRefused) width = std::max(width, std::min<size_t>(k.key.size() + k.value.size() + 2, 64));
  }
  std::string out = cat(shown_path(path), ": ", config.program, ", ", config.keys.size(), " keys\n");
  for (const auto& [fate, title] : kGroups) {
    bool first = true;
    for (const ImportedKey& k : config.keys) {
      if (k.fate != fate) continue;
      if (first) append(out, "\n", title, "\n");
      first = false;
      const std::string said = k.value.empty() ? k.key : cat(k.key, ": ", k.value);
      if (fate == KeyFate::kRefused)
        append(out, "  ", shown_path(path), ":", k.line, ":", k.column, ": ", k.says, "\n");
      else
        append(out, "  ", k.says.empty() ? said : fmt::format("{:<{}}  {}", said, width, k.says), "\n");
    }
  }
  return out;
}

std::string command_of(const ImportedConfig& config, const std::string& recipe) {
  const std::string train = cat(" MODEL.onnx --train ", recipe, config.ranks ? cat(" --ranks ", *config.ranks) : "");
  const std::string data = " --data DATA";
  if (config.nodes.value_or(1) == 1 && config.launch.empty())
    return cat("partita train", train, data, joined(config.flags));
  return cat("partita compile", train, " -o BUNDLE && partita launch BUNDLE",
             config.nodes ? cat(" --nodes ", *config.nodes) : "", joined(config.launch), data, joined(config.flags));
}

std::string format_train_yaml(const ImportedConfig& config, const std::string& path) {
  return cat("# From ", shown_path(path), " (", config.program,
             "). Still to say: loss, unless the model has one; data.\n# ", command_of(config, "THIS_FILE"), "\n",
             format_recipe(config.recipe));
}

}  // namespace partita
