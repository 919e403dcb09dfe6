#include "ir/recipe/pins.h"

#include <algorithm>

#include "base/cat.h"
#include "base/quote.h"
#include "ir/recipe/block_ranges.h"
#include "ir/yaml/yaml_fields.h"

namespace partita {
namespace {

constexpr std::string_view kAxes[] = {"data", "tensor", "pipeline", "context", "expert"};
constexpr std::string_view kStageAxes[] = {"data", "tensor", "context", "expert"};
constexpr int64_t kMostDevices = int64_t{1} << 24;

FieldParser<PinRecipe> axis(std::string name) {
  return [name](const YamlNode& node, const std::string& path, PinRecipe& out) -> absl::Status {
    out.axes.erase(name);
    if (node.kind == YamlNode::Kind::kNull) return absl::OkStatus();
    PARTITA_ASSIGN_OR_RETURN(out.axes[name], read_integer(node, path, 1, kMostDevices));
    return absl::OkStatus();
  };
}

// [{data: 4}, {data: 2, tensor: 2}]: one mapping for each stage.
absl::Status parse_stages(const YamlNode& node, const std::string& path, PinRecipe& out) {
  out.stages.clear();
  if (node.kind == YamlNode::Kind::kNull) return absl::OkStatus();
  if (node.kind != YamlNode::Kind::kSequence || node.items.empty())
    return unexpected(node, path, "a list with one mapping for each stage, as in [{data: 4}, {tensor: 4}]");
  for (const auto& item : node.items) {
    std::string where = cat(path, "[", out.stages.size(), "]");
    PARTITA_ASSIGN_OR_RETURN(auto found, match_keys(*item, where, {std::begin(kStageAxes), std::end(kStageAxes)}));
    std::map<std::string, int64_t>& stage = out.stages.emplace_back();
    for (const YamlEntry* entry : found) {
      if (entry == nullptr) continue;
      PARTITA_ASSIGN_OR_RETURN(stage[entry->key],
                               read_integer(*entry->value, join_path(where, entry->key), 1, kMostDevices));
    }
  }
  return absl::OkStatus();
}

absl::Status parse_zero_group(const YamlNode& node, const std::string& path, PinRecipe& out) {
  if (node.kind == YamlNode::Kind::kScalar && node.text == "node") {
    out.zero_group = PinRecipe::kNode;
    return absl::OkStatus();
  }
  return integer(&PinRecipe::zero_group, 1, kMostDevices)(node, path, out);
}

// 67108864, or {8: 26214400, 1024: 1073741824}: by the ranks of a group.
absl::Status parse_bucket_bytes(const YamlNode& node, const std::string& path, PinRecipe& out) {
  out.bucket_bytes = {};
  auto add = [&](int64_t ranks, const YamlNode& value, const std::string& where) -> absl::Status {
    PARTITA_ASSIGN_OR_RETURN(const int64_t bytes, read_integer(value, where, 1, kLargestCount));
    out.bucket_bytes.raise(ranks, bytes);
    return absl::OkStatus();
  };
  if (node.kind == YamlNode::Kind::kNull) return absl::OkStatus();
  if (node.kind == YamlNode::Kind::kScalar) return add(0, node, path);
  if (node.kind != YamlNode::Kind::kMapping || node.entries.empty())
    return unexpected(node, path, "bytes, or a mapping from ranks to bytes, as in {8: 26214400, 64: 104857600}");
  for (const YamlEntry& entry : node.entries) {
    YamlNode key = node;
    key.kind = YamlNode::Kind::kScalar, key.text = entry.key;
    PARTITA_ASSIGN_OR_RETURN(const int64_t ranks, read_integer(key, path, 2, kMostDevices));
    PARTITA_RETURN_IF_ERROR(add(ranks, *entry.value, join_path(path, entry.key)));
  }
  return absl::OkStatus();
}

// full, or {full: 0..3, mlp: [4, 6..7]}: of all blocks alike, or by block.
absl::Status parse_recompute(const YamlNode& node, const std::string& path, PinRecipe& out) {
  out.recompute_blocks.clear();
  if (node.kind != YamlNode::Kind::kMapping) return choice(&PinRecipe::recompute)(node, path, out);
  out.recompute.reset();
  PARTITA_ASSIGN_OR_RETURN(out.recompute_blocks, parse_block_modes(node, path));
  if (out.recompute_blocks.empty()) out.recompute = RecomputeMode::kNone;
  return absl::OkStatus();
}

// Of the optimizer's states, which it says lie on the host.
absl::Status parse_offload_fraction(const YamlNode& node, const std::string& path, PinRecipe& out) {
  PARTITA_RETURN_IF_ERROR(number(&PinRecipe::offload_fraction, kShare)(node, path, out));
  if (!out.offload) out.offload = OffloadMode::kOptimizer;
  return absl::OkStatus();
}

const Fields<PinRecipe>& pin_fields() {
  static const Fields<PinRecipe> kFields = {
      {"data", axis("data")},
      {"tensor", axis("tensor")},
      {"pipeline", axis("pipeline")},
      {"context", axis("context")},
      {"expert", axis("expert")},
      {"zero", integer(&PinRecipe::zero, 0, 3)},
      {"zero_group", parse_zero_group},
      {"reshard_after_forward", boolean(&PinRecipe::reshard_after_forward)},
      {"prefetch_blocks", integer(&PinRecipe::prefetch_blocks, 0, PinRecipe::kMostPrefetched)},
      {"overlap_micro_batches", integer(&PinRecipe::overlap_micro_batches, 1, PinRecipe::kMostOverlapped)},
      {"overlap_products", integer(&PinRecipe::overlap_products, 1, PinRecipe::kMostRowParts)},
      {"hierarchical_group", integer(&PinRecipe::hierarchical_group, 1, kMostDevices)},
      {"bucket_bytes", parse_bucket_bytes},
      {"micro_batch", integer(&PinRecipe::micro_batch, 1)},
      {"sequence_parallel", boolean(&PinRecipe::sequence_parallel)},
      {"recompute", parse_recompute},
      {"offload", choice(&PinRecipe::offload)},
      {"offload_fraction", parse_offload_fraction},
      {"schedule", choice(&PinRecipe::schedule)},
      {"interleave", integer(&PinRecipe::interleave, 1, 1024)},
      {"cuts", globs(&PinRecipe::cuts)},
      {"stages", parse_stages},
  };
  return kFields;
}

// {factor: axis}, {factor: [axis, axis]} or {factor: } for one that stays whole.
absl::Status parse_value_pin(const YamlEntry& entry, const std::string& path, PinRecipe& out) {
  const YamlNode& node = *entry.value;
  ValuePin pin = {.match = entry.key};
  PARTITA_RETURN_IF_ERROR(check_glob(node, path, pin.match));
  for (const YamlEntry& factor : node.entries) {
    std::string where = join_path(path, factor.key);
    std::vector<std::string>& axes = pin.factors[factor.key];
    auto add = [&](const YamlNode& axis) -> absl::Status {
      PARTITA_ASSIGN_OR_RETURN(size_t index, read_choice(axis, where, kAxes));
      axes.emplace_back(kAxes[index]);
      if (std::count(axes.begin(), axes.end(), axes.back()) > 1) return unexpected(axis, where, "every axis once");
      return absl::OkStatus();
    };
    if (factor.value->kind == YamlNode::Kind::kScalar) PARTITA_RETURN_IF_ERROR(add(*factor.value));
    if (factor.value->kind == YamlNode::Kind::kMapping)
      return unexpected(*factor.value, where, "an axis or a list of axes");
    for (const auto& item : factor.value->items) PARTITA_RETURN_IF_ERROR(add(*item));
  }
  std::erase_if(out.values, [&](const ValuePin& other) { return other.match == pin.match; });
  out.values.push_back(std::move(pin));
  return absl::OkStatus();
}

}  // namespace

absl::Status parse_pin(const YamlEntry& entry, const std::string& path, PinRecipe& out) {
  std::string where = join_path(path, entry.key);
  std::vector<std::string_view> keys;
  for (const Field<PinRecipe>& field : pin_fields()) {
    if (field.key == entry.key) return field.parse(*entry.value, where, out);
    keys.push_back(field.key);
  }
  if (entry.value->kind == YamlNode::Kind::kMapping) return parse_value_pin(entry, where, out);
  absl::Status status = unknown_key(entry, path, keys);
  return absl::InvalidArgumentError(
      cat(status.message(), " (a pattern of value names takes a mapping: {factor: axis})"));
}

absl::Status parse_pins(const YamlNode& node, const std::string& path, PinRecipe& out) {
  if (node.kind == YamlNode::Kind::kNull) return absl::OkStatus();
  if (node.kind != YamlNode::Kind::kMapping) return unexpected(node, path, "a mapping");
  for (const YamlEntry& entry : node.entries) PARTITA_RETURN_IF_ERROR(parse_pin(entry, path, out));
  return absl::OkStatus();
}

absl::Status apply_pin(Recipe& recipe, std::string_view key_value) {
  auto refuse = [&](std::string_view message) {
    return absl::InvalidArgumentError(cat("--pin ", quote(key_value), ": ", message));
  };
  size_t equals = key_value.find('=');
  YamlEntry entry;
  entry.key = std::string(key_value.substr(0, equals));
  if (equals == std::string_view::npos || entry.key.empty()) return refuse("expected KEY=VALUE, as in tensor=8");
  auto value = parse_yaml(key_value.substr(equals + 1));
  if (!value.ok()) return refuse(cat(value.status().message()));
  entry.line = entry.column = 1;
  entry.value = *value;
  if (entry.value->kind == YamlNode::Kind::kNull) return refuse("expected a value after '='");
  if (entry.key == "compress") {  // of the recipe itself
    absl::Status status = choice(&Recipe::compress)(*entry.value, "pin.compress", recipe);
    return status.ok() ? status : refuse(cat(status.message()));
  }
  PinRecipe pins = recipe.pin;
  absl::Status status = parse_pin(entry, "pin", pins);
  if (!status.ok()) return refuse(cat(status.message()));
  recipe.pin = std::move(pins);
  return absl::OkStatus();
}

namespace {

// Axes that a preset leaves out are searched: with the others pinned that is what remains of the devices.
struct Preset {
  std::string_view name, pins;
};
constexpr Preset kPresets[] = {
    {"ddp", "tensor=1 pipeline=1 context=1 expert=1 zero=0 offload=none"},
    {"fsdp", "tensor=1 pipeline=1 context=1 expert=1 zero=3 offload=none"},
    {"hsdp", "tensor=1 pipeline=1 context=1 expert=1 zero=3 zero_group=node offload=none"},
    {"zero1", "tensor=1 pipeline=1 context=1 expert=1 zero=1 offload=none"},
    {"zero2", "tensor=1 pipeline=1 context=1 expert=1 zero=2 offload=none"},
    {"zero3", "tensor=1 pipeline=1 context=1 expert=1 zero=3 offload=none"},
    {"zero3-offload", "tensor=1 pipeline=1 context=1 expert=1 zero=3 offload=all"},
    {"megatron", "tensor=1 pipeline=1 context=1 expert=1 zero=1 sequence_parallel=true schedule=1f1b offload=none"},
    {"gpipe", "data=1 tensor=1 context=1 expert=1 zero=0 schedule=gpipe recompute=full offload=none"},
    {"pipedream", "tensor=1 context=1 expert=1 zero=0 schedule=1f1b offload=none"},
};

// Shorthands of a preset's arguments: "tp8" pins tensor=8, and what comes with it.
struct PresetArgument {
  std::string_view name, key, also;
};
constexpr PresetArgument kArguments[] = {
    {"tp", "tensor", ""},      {"pp", "pipeline", ""}, {"cp", "context", ""},
    {"ep", "expert", ""},      {"dp", "data", ""},     {"vpp", "interleave", "schedule=interleaved"},
    {"mb", "micro_batch", ""}, {"zero", "zero", ""},
};

template <typename Table>
std::string names_of(const Table& table) {
  std::vector<std::string_view> names;
  for (const auto& row : table) names.push_back(row.name);
  return join_names(names);
}

// The text before `separator`, which `rest` loses together with it; all of `rest` where there is none.
std::string_view take_until(std::string_view& rest, char separator) {
  std::string_view head = rest.substr(0, rest.find(separator));
  rest.remove_prefix(std::min(rest.size(), head.size() + 1));
  return head;
}

absl::Status apply_argument(Recipe& recipe, std::string_view text) {
  size_t digits = std::min(text.find_first_of("0123456789"), text.size());
  for (const PresetArgument& argument : kArguments) {
    if (argument.name != text.substr(0, digits) || digits == text.size()) continue;
    PARTITA_RETURN_IF_ERROR(apply_pin(recipe, cat(argument.key, "=", text.substr(digits))));
    return argument.also.empty() ? absl::OkStatus() : apply_pin(recipe, argument.also);
  }
  return absl::InvalidArgumentError(
      cat("expected one of ", names_of(kArguments), " and a number, as in tp8, found ", quote(text)));
}

}  // namespace

void drop_other_cuts(const PinRecipe& before, PinRecipe& pin) {
  auto parts = [](const PinRecipe& p) { return std::pair(p.axis("pipeline"), p.interleave); };
  if (pin.cuts == before.cuts && parts(pin) != parts(before)) pin.cuts.clear();
}

absl::Status apply_preset(Recipe& recipe, std::string_view preset) {
  auto refuse = [&](std::string_view message) {
    return absl::InvalidArgumentError(cat("--like ", quote(preset), ": ", message));
  };
  std::string_view arguments = preset;
  std::string_view name = take_until(arguments, ':');
  const Preset* found =
      std::find_if(std::begin(kPresets), std::end(kPresets), [&](const Preset& row) { return row.name == name; });
  if (found == std::end(kPresets))
    return refuse(cat("expected one of ", names_of(kPresets), "; arguments follow a colon, as in megatron:tp8,pp4"));
  Recipe result = recipe;
  result.pin.stages.clear();  // a preset says what all stages divide
  for (std::string_view pins = found->pins; !pins.empty();)
    PARTITA_RETURN_IF_ERROR(apply_pin(result, take_until(pins, ' ')));
  while (!arguments.empty()) {
    absl::Status status = apply_argument(result, take_until(arguments, ','));
    if (!status.ok()) return refuse(cat(status.message()));
  }
  drop_other_cuts(recipe.pin, result.pin);
  recipe.pin = std::move(result.pin);
  return absl::OkStatus();
}

}  // namespace partita
