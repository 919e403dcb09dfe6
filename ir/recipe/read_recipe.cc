#include "ir/recipe/read_recipe.h"

#include <algorithm>
#include <bit>
#include <numbers>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "base/text_file.h"
#include "ir/recipe/config_keys.h"
#include "ir/recipe/deepspeed_config.h"
#include "ir/recipe/lengths.h"
#include "ir/recipe/overrides.h"
#include "ir/recipe/pins.h"
#include "ir/recipe/read_data.h"
#include "ir/recipe/read_loss.h"
#include "ir/recipe/read_optimizer.h"
#include "ir/recipe/step_pairs.h"
#include "ir/recipe/write_recipe.h"
#include "ir/yaml/yaml_fields.h"

namespace partita {
namespace {

using Kind = YamlNode::Kind;

constexpr NumberRange kSeconds = {"a number of seconds > 0, at most 1e7", [](double x) { return x > 0 && x <= 1e7; }};

absl::Status parse_micro(const YamlNode& node, const std::string& path, BatchRecipe& out) {
  if (node.kind == Kind::kScalar && node.text == "auto") return absl::OkStatus();
  if (node.kind == Kind::kScalar && !read_integer(node, path, 1, kLargestCount).ok())
    return unexpected(node, path, "auto or an integer >= 1");
  return integer(&BatchRecipe::micro, 1)(node, path, out);
}

// A number of samples, or [[step, samples], …] from step 0 on.
absl::Status parse_global(const YamlNode& node, const std::string& path, BatchRecipe& out) {
  if (node.kind != Kind::kSequence) return integer(&BatchRecipe::global, 1)(node, path, out);
  constexpr size_t kMostPhases = 64;  // each is a program of its own
  PARTITA_RETURN_IF_ERROR(
      read_step_pairs(node, path, kMostPhases, "[step, samples]",
                      [&](int64_t step, const YamlNode& value, const std::string& at) -> absl::Status {
                        PARTITA_ASSIGN_OR_RETURN(const int64_t samples, read_integer(value, at, 1, kLargestCount));
                        out.ramp.push_back({step, samples});
                        return absl::OkStatus();
                      }));
  out.global = out.ramp.back().samples;
  return absl::OkStatus();
}

absl::Status parse_batch(const YamlNode& node, const std::string& path, BatchRecipe& out) {
  static const Fields<BatchRecipe> kFields = {
      {"global", parse_global}, {"micro", parse_micro}, {"accumulation", integer(&BatchRecipe::accumulation, 1)}};
  return parse_fields(node, path, kFields, out);
}

// `flash` is what the default was called before it had several kernels to take.
absl::Status parse_attention(const YamlNode& node, const std::string& path, Recipe& out) {
  if (absl::StatusOr<std::string> text = read_text(node, path); text.ok() && *text == "flash") {
    out.attention = AttentionKernel::kAuto;
    return absl::OkStatus();
  }
  return choice(&Recipe::attention)(node, path, out);
}

absl::Status parse_kernels(const YamlNode& node, const std::string& path, Recipe& out) {
  static const Fields<Recipe> kFields = {{"attention", parse_attention}};
  return parse_fields(node, path, kFields, out);
}

// Each distribution of an init rule has its own keys, and one of them may stand alone: {normal: 0.02} is a std.
absl::Status init_normal(const YamlNode& node, const std::string& path, InitRule& out) {
  static const Fields<InitRule> kFields = {{"mean", number(&InitRule::mean, kAnyNumber)},
                                           {"std", number(&InitRule::std, kNonNegative)}};
  out.kind = InitKind::kNormal;
  return node.kind == Kind::kScalar ? kFields[1].parse(node, path, out) : parse_fields(node, path, kFields, out);
}

absl::Status init_uniform(const YamlNode& node, const std::string& path, InitRule& out) {
  static const Fields<InitRule> kFields = {{"low", number(&InitRule::low, kAnyNumber)},
                                           {"high", number(&InitRule::high, kAnyNumber)}};
  out.kind = InitKind::kUniform;
  if (node.kind == Kind::kScalar) {
    PARTITA_ASSIGN_OR_RETURN(out.high, read_number(node, path, kNonNegative));
    out.low = -out.high;
    return absl::OkStatus();
  }
  PARTITA_RETURN_IF_ERROR(parse_fields(node, path, kFields, out));
  return out.low <= out.high ? absl::OkStatus() : unexpected(node, path, "low <= high");
}

template <int value>
absl::Status init_same(const YamlNode& node, const std::string& path, InitRule& out) {
  out.kind = InitKind::kConstant;
  out.value = value;
  if (node.kind == Kind::kNull) return absl::OkStatus();
  PARTITA_ASSIGN_OR_RETURN(bool chosen, read_bool(node, path));
  return chosen ? absl::OkStatus() : unexpected(node, path, "nothing or true");
}

absl::Status init_constant(const YamlNode& node, const std::string& path, InitRule& out) {
  out.kind = InitKind::kConstant;
  return number(&InitRule::value, kAnyNumber)(node, path, out);
}

template <InitKind kind>
absl::Status init_scaled(const YamlNode& node, const std::string& path, InitRule& out) {
  static const Fields<InitRule> kFields = [] {
    Fields<InitRule> fields = {{"distribution", choice(&InitRule::distribution)},
                               {"gain", number(&InitRule::gain, kPositive)}};
    if (kind == InitKind::kKaiming) fields.push_back({"fan", choice(&InitRule::fan)});
    return fields;
  }();
  out.kind = kind;
  out.gain = kind == InitKind::kKaiming ? std::numbers::sqrt2 : 1;
  return node.kind == Kind::kScalar ? kFields[0].parse(node, path, out) : parse_fields(node, path, kFields, out);
}

absl::Status parse_init_rule(const YamlNode& node, const std::string& path, InitRule& out) {
  static const Fields<InitRule> kFields = {
      {"match", text(&InitRule::match)},
      {"normal", init_normal},
      {"uniform", init_uniform},
      {"zeros", init_same<0>},
      {"ones", init_same<1>},
      {"constant", init_constant},
      {"kaiming", init_scaled<InitKind::kKaiming>},
      {"xavier", init_scaled<InitKind::kXavier>},
  };
  PARTITA_RETURN_IF_ERROR(parse_fields(node, path, kFields, out));
  if (node.kind != Kind::kMapping || node.entries.size() != 2 || out.match.empty()) {
    return unexpected(node, path, "'match' and exactly one of normal, uniform, zeros, ones, constant, kaiming, xavier");
  }
  return check_glob(node, path, out.match);
}

absl::Status parse_init(const YamlNode& node, const std::string& path, Recipe& out) {
  if (node.kind == Kind::kNull) return absl::OkStatus();
  if (node.kind != Kind::kSequence) return unexpected(node, path, "a list of rules");
  for (size_t i = 0; i < node.items.size(); ++i) {
    PARTITA_RETURN_IF_ERROR(parse_init_rule(*node.items[i], cat(path, "[", i, "]"), out.init.emplace_back()));
  }
  return absl::OkStatus();
}

absl::Status parse_evaluate(const YamlNode& node, const std::string& path, EvaluateRecipe& out) {
  static const Fields<EvaluateRecipe> kFields = {
      {"data", section(&EvaluateRecipe::data, parse_data)},
      {"every", integer(&EvaluateRecipe::every, 1)},
      {"batches", integer(&EvaluateRecipe::batches, 1)},
  };
  PARTITA_RETURN_IF_ERROR(parse_fields(node, path, kFields, out));
  const YamlEntry* data = find_entry(node, "data");
  if (data == nullptr || data->value->kind == Kind::kNull)
    return yaml_error(node.line, node.column, cat(path, ": missing key 'data'"));
  return absl::OkStatus();
}

absl::Status parse_moe(const YamlNode& node, const std::string& path, SemanticsRecipe& out) {
  static const Fields<MoeCapacity> kFields = {
      {"capacity", integer(&MoeCapacity::tokens, 1)},
      {"capacity_factor", number(&MoeCapacity::factor, kPositive)},
      {"group", integer(&MoeCapacity::group, 1)},
  };
  out.moe_dropless = node.kind == Kind::kScalar && node.text == "dropless";
  if (node.kind == Kind::kNull || out.moe_dropless) return absl::OkStatus();
  if (node.kind != Kind::kMapping) return unexpected(node, path, "dropless or {capacity, group}");
  MoeCapacity capacity;
  PARTITA_RETURN_IF_ERROR(parse_fields(node, path, kFields, capacity));
  if (capacity.tokens.has_value() == capacity.factor.has_value())
    return unexpected(node, path, "exactly one of capacity (tokens) and capacity_factor");
  out.moe = capacity;
  return absl::OkStatus();
}

absl::Status parse_semantics(const YamlNode& node, const std::string& path, SemanticsRecipe& out) {
  static const Fields<SemanticsRecipe> kFields = {
      {"batch_norm", choice(&SemanticsRecipe::batch_norm)},
      {"batch_norm_training", boolean(&SemanticsRecipe::batch_norm_training)},
      {"moe", parse_moe},
  };
  return parse_fields(node, path, kFields, out);
}

// A number, or {initial, window, hysteresis, minimum}.
absl::Status parse_loss_scale(const YamlNode& node, const std::string& path, LossScaleRecipe& out) {
  static const Fields<LossScaleRecipe> kFields = {
      {"initial", number(&LossScaleRecipe::initial, kPositive)},
      {"window", integer(&LossScaleRecipe::window, 1)},
      {"hysteresis", integer(&LossScaleRecipe::hysteresis, 1)},
      {"minimum", number(&LossScaleRecipe::minimum, kNonNegative)},
  };
  if (node.kind == Kind::kScalar) return number(&LossScaleRecipe::fixed, kPositive)(node, path, out);
  PARTITA_RETURN_IF_ERROR(parse_fields(node, path, kFields, out));
  if (out.minimum > out.initial)
    return unexpected(node, path, cat("a minimum of at most initial ", out.initial, " (it is ", out.minimum, ")"));
  return absl::OkStatus();
}

absl::Status parse_fp8(const YamlNode& node, const std::string& path, Fp8Recipe& out) {
  constexpr int64_t kBlocks[] = {32, 64, 128};
  static const Fields<Fp8Recipe> kFields = {
      {"block", integer(&Fp8Recipe::block, kBlocks[0], kBlocks[2])},
      {"gradients", choice(&Fp8Recipe::gradients)},
      {"keep", globs(&Fp8Recipe::keep)},
  };
  PARTITA_RETURN_IF_ERROR(parse_fields(node, path, kFields, out));
  if (std::find(std::begin(kBlocks), std::end(kBlocks), out.block) == std::end(kBlocks))
    return unexpected(node, join_path(path, "block"), "a block of 32, 64 or 128 elements");
  return absl::OkStatus();
}

absl::Status parse_ema(const YamlNode& node, const std::string& path, EmaRecipe& out) {
  static const Fields<EmaRecipe> kFields = {{"decay", number(&EmaRecipe::decay, kFraction)}};
  return parse_fields(node, path, kFields, out);
}

// `samples` alone, or a mapping.
absl::Status parse_reproducible(const YamlNode& node, const std::string& path, ReproducibleRecipe& out) {
  constexpr int64_t kMostParts = 1 << 20, kMostBlocks = 1 << 10;
  static const Fields<ReproducibleRecipe> kFields = {
      {"samples", integer(&ReproducibleRecipe::samples, 1, kMostParts)},
      {"tensor", integer(&ReproducibleRecipe::tensor, 1, kMostBlocks)},
  };
  const auto check = [](const YamlNode& at, const std::string& of, int64_t n) {
    return std::has_single_bit(static_cast<uint64_t>(n)) ? absl::OkStatus() : unexpected(at, of, "a power of two");
  };
  if (node.kind != Kind::kMapping) {
    PARTITA_ASSIGN_OR_RETURN(out.samples, read_integer(node, path, 1, kMostParts));
    return check(node, path, out.samples);
  }
  if (find_entry(node, "samples") == nullptr)
    return yaml_error(node.line, node.column, cat(path, ": missing key 'samples'"));
  PARTITA_RETURN_IF_ERROR(parse_fields(node, path, kFields, out));
  for (const YamlEntry& entry : node.entries)
    PARTITA_RETURN_IF_ERROR(
        check(*entry.value, join_path(path, entry.key), entry.key == "tensor" ? out.tensor : out.samples));
  return absl::OkStatus();
}

absl::Status parse_loss_spike(const YamlNode& node, const std::string& path, LossSpikeRecipe& out) {
  static const Fields<LossSpikeRecipe> kFields = {
      {"factor", number(&LossSpikeRecipe::factor, kAboveOne)},
      {"window", integer(&LossSpikeRecipe::window, 1, LossSpikeRecipe::kLongestWindow)},
      {"action", choice(&LossSpikeRecipe::action)},
  };
  PARTITA_RETURN_IF_ERROR(parse_fields(node, path, kFields, out));
  if (out.action == DivergenceAction::kSkip)
    return unexpected(node, path, "action warn, rollback or stop: the update is done before a spike is seen");
  return absl::OkStatus();
}

absl::Status parse_timeout(const YamlNode& node, const std::string& path, TimeoutRecipe& out) {
  static const Fields<TimeoutRecipe> kFields = {
      {"start", number(&TimeoutRecipe::start, kSeconds)},
      {"data", number(&TimeoutRecipe::data, kSeconds)},
      {"step", number(&TimeoutRecipe::step, kSeconds)},
      {"collective", number(&TimeoutRecipe::collective, kSeconds)},
      {"checkpoint", number(&TimeoutRecipe::checkpoint, kSeconds)},
      {"evaluation", number(&TimeoutRecipe::evaluation, kSeconds)},
  };
  return parse_fields(node, path, kFields, out);
}

absl::Status parse_run(const YamlNode& node, const std::string& path, RunRecipe& out) {
  static const Fields<RunRecipe> kFields = {
      {"on_nonfinite", choice(&RunRecipe::on_nonfinite)},
      {"loss_spike", section(&RunRecipe::loss_spike, parse_loss_spike)},
      {"timeout", section(&RunRecipe::timeout, parse_timeout)},
  };
  return parse_fields(node, path, kFields, out);
}

absl::StatusOr<int64_t> read_extent(const YamlNode& node, std::string_view path) {
  return read_integer(node, path, 1, kLargestCount);
}

// Several extents of one dimension are lengths that samples may have.
absl::Status parse_bind(const YamlNode& node, const std::string& path, Recipe& out) {
  if (node.kind == Kind::kNull) return absl::OkStatus();
  if (node.kind != Kind::kMapping) return unexpected(node, path, "a mapping");
  constexpr size_t kMostLengths = 16;  // each is a program of its own
  for (const YamlEntry& entry : node.entries) {
    const YamlNode& value = *entry.value;
    const std::string at = join_path(path, entry.key);
    if (value.kind != Kind::kSequence) {
      PARTITA_ASSIGN_OR_RETURN(out.bind[entry.key], read_extent(value, at));
      continue;
    }
    if (value.items.empty() || value.items.size() > kMostLengths)
      return unexpected(value, at, cat("an integer, or a list of at most ", kMostLengths));
    std::vector<int64_t> extents;
    for (size_t k = 0; k < value.items.size(); ++k) {
      PARTITA_ASSIGN_OR_RETURN(const int64_t extent, read_extent(*value.items[k], cat(at, "[", k, "]")));
      if (std::find(extents.begin(), extents.end(), extent) != extents.end())
        return unexpected(*value.items[k], cat(at, "[", k, "]"), "another length than those before");
      extents.push_back(extent);
    }
    std::sort(extents.begin(), extents.end());
    out.bind[entry.key] = extents.back();
    if (extents.size() == 1) continue;
    if (!out.lengths.extents.empty())
      return unexpected(value, at, cat("one number: ", quote(out.lengths.dimension), " has several already"));
    out.lengths = {entry.key, std::move(extents)};
  }
  return absl::OkStatus();
}

const Fields<Recipe>& recipe_fields() {
  static const Fields<Recipe> kFields = {
      {"loss", parse_losses},
      {"metrics", parse_metrics},
      {"optimizer", section(&Recipe::optimizer, parse_optimizer)},
      {"schedule", section(&Recipe::schedule, parse_schedule)},
      {"batch", section(&Recipe::batch, parse_batch)},
      {"bind", parse_bind},
      {"precision", choice(&Recipe::precision)},
      {"loss_scale", section(&Recipe::loss_scale, parse_loss_scale)},
      {"fp8", section(&Recipe::fp8, parse_fp8)},
      {"clip_grad_norm", number(&Recipe::clip_grad_norm, kPositive)},
      {"clip_grad_value", number(&Recipe::clip_grad_value, kPositive)},
      {"ema", section(&Recipe::ema, parse_ema)},
      {"recompute", choice(&Recipe::recompute)},
      {"kernels", parse_kernels},
      {"trainable", globs(&Recipe::trainable)},
      {"frozen", globs(&Recipe::frozen)},
      {"seed", integer(&Recipe::seed, 0, INT64_MAX)},
      {"init", parse_init},
      {"data", section(&Recipe::data, parse_data)},
      {"evaluate", section(&Recipe::evaluate, parse_evaluate)},
      {"semantics", section(&Recipe::semantics, parse_semantics)},
      {"compress", choice(&Recipe::compress)},
      {"reproducible", section(&Recipe::reproducible, parse_reproducible)},
      {"run", section(&Recipe::run, parse_run)},
      {"pin", section(&Recipe::pin, parse_pins)},
      {"names", map_of(&Recipe::names, read_text)},
  };
  return kFields;
}

}  // namespace

absl::Status check_recipe(const Recipe& recipe, std::string_view file_name) {
  auto refuse = [&](std::string_view message) { return absl::InvalidArgumentError(cat(file_name, ": ", message)); };
  if (recipe.optimizer && recipe.schedule.min_lr > recipe.optimizer->lr) {
    return refuse(cat("schedule.min_lr: expected at most optimizer.lr ", recipe.optimizer->lr, ", found ",
                      recipe.schedule.min_lr));
  }
  const BatchRecipe& batch = recipe.batch;
  if (batch.global && batch.micro && *batch.global % *batch.micro != 0) {
    return refuse(cat("batch.micro: expected a divisor of batch.global ", *batch.global, ", found ", *batch.micro));
  }
  for (const BatchPhase& phase : batch.ramp) {
    if (batch.micro && phase.samples % *batch.micro != 0)
      return refuse(cat("batch.micro: expected a divisor of batch.global ", phase.samples, " (from step ", phase.from,
                        "), found ", *batch.micro));
  }
  if (!batch.ramp.empty() && batch.accumulation)
    return refuse("batch.accumulation: expected none beside a batch.global that changes: it changes with it");
  if (batch.ramp.size() > 1 && recipe.pin.schedule == PipelineSchedule::kPipedream)
    return refuse("batch.global: expected one number with schedule: pipedream, whose micro-batches are steps");
  if (const absl::Status lengths = check_lengths(recipe); !lengths.ok()) return refuse(cat(lengths.message()));
  if (recipe.pin.interleave.value_or(1) > 1 &&
      recipe.pin.schedule.value_or(PipelineSchedule::kInterleaved) != PipelineSchedule::kInterleaved)
    return refuse(cat("pin.interleave: ", *recipe.pin.interleave,
                      " chunks per stage need schedule: interleaved, found ", enum_name(*recipe.pin.schedule)));
  if (batch.micro && recipe.pin.micro_batch && *batch.micro != *recipe.pin.micro_batch) {
    return refuse(cat("pin.micro_batch: expected batch.micro ", *batch.micro, ", found ", *recipe.pin.micro_batch,
                      "; keep one of the two"));
  }
  return absl::OkStatus();
}

namespace {

// The tree of a train.yaml or a ds_config.json, checked.
absl::StatusOr<Recipe> read_tree(const YamlNode& root, std::string_view file_name) {
  Recipe recipe;
  const absl::Status status = is_deepspeed_config(root) ? parse_deepspeed_config(root, recipe)
                                                        : parse_fields(root, "", recipe_fields(), recipe);
  if (!status.ok()) return absl::Status(status.code(), cat(file_name, ":", status.message()));
  PARTITA_RETURN_IF_ERROR(check_recipe(recipe, file_name));
  return recipe;
}

// Rates and the like of a run that leaves the rule open are adamw's.
std::vector<std::string> with_kind(const YamlNode& root, std::vector<std::string> sets) {
  const bool of_optimizer = std::any_of(sets.begin(), sets.end(), [](const std::string& s) {
    return s.starts_with("optimizer.") && !s.starts_with("optimizer.kind=");
  });
  const YamlEntry* said = find_entry(root, "optimizer");
  if (of_optimizer && (said == nullptr || said->value->kind == Kind::kNull) && !is_deepspeed_config(root))
    sets.insert(sets.begin(), "optimizer.kind=adamw");
  return sets;
}

absl::StatusOr<std::shared_ptr<const YamlNode>> read_yaml(std::string_view text, std::string_view file_name) {
  auto root = parse_yaml(text);
  if (root.ok()) return root;
  return absl::Status(root.status().code(), cat(file_name, ":", root.status().message()));
}

// A train.yaml that names a DeepSpeed configuration, `deepspeed: ds_config.json`, as one file: what it says itself
// comes over that. The path goes from the recipe's folder.
absl::StatusOr<std::shared_ptr<const YamlNode>> over_deepspeed(std::shared_ptr<const YamlNode> root,
                                                               const std::string& path) {
  const YamlEntry* named = find_entry(*root, "deepspeed");
  if (named == nullptr || named->value->kind != Kind::kScalar) return root;
  const size_t slash = path.rfind('/');
  const std::string& said = named->value->text;
  const std::string file = said.starts_with("/") || slash == path.npos ? said : cat(path.substr(0, slash + 1), said);
  PARTITA_ASSIGN_OR_RETURN(const std::string text, read_text_file(file, kMaxYamlBytes));
  PARTITA_ASSIGN_OR_RETURN(const auto whole, read_yaml(text, shown_path(file)));
  auto config = std::make_shared<YamlNode>(*whole);
  if (find_entry(*root, "schedule") != nullptr)  // in its place
    std::erase_if(config->entries, [](const YamlEntry& e) { return e.key == "scheduler"; });
  Recipe recipe;
  const absl::Status status = parse_deepspeed_config(*config, recipe);
  if (!status.ok()) return absl::Status(status.code(), cat(shown_path(file), ":", status.message()));
  PARTITA_ASSIGN_OR_RETURN(const auto base, read_yaml(format_recipe(recipe), shown_path(file)));
  auto own = std::make_shared<YamlNode>(*root);
  std::erase_if(own->entries, [](const YamlEntry& e) { return e.key == "deepspeed"; });
  return merged(base, own);
}

}  // namespace

absl::StatusOr<Recipe> parse_recipe(std::string_view text, std::string_view file_name) {
  PARTITA_ASSIGN_OR_RETURN(const auto root, read_yaml(text, file_name));
  return read_tree(*root, file_name);
}

absl::StatusOr<Recipe> load_recipe(const std::string& path, const std::vector<std::string>& sets) {
  std::string text;
  if (!path.empty()) {
    PARTITA_ASSIGN_OR_RETURN(text, read_text_file(path, kMaxYamlBytes));
  }
  const std::string name = path.empty() ? "command line" : shown_path(path);
  PARTITA_ASSIGN_OR_RETURN(auto file, read_yaml(text, name));
  PARTITA_ASSIGN_OR_RETURN(file, over_deepspeed(std::move(file), path));
  if (sets.empty()) return read_tree(*file, name);
  if (is_deepspeed_config(*file)) {
    PARTITA_ASSIGN_OR_RETURN(const Recipe config, read_tree(*file, name));
    PARTITA_ASSIGN_OR_RETURN(file, read_yaml(format_recipe(config), name));
  }
  PARTITA_ASSIGN_OR_RETURN(const auto root, with_overrides(file, with_kind(*file, sets)));
  absl::StatusOr<Recipe> recipe = read_tree(*root, name);
  if (recipe.ok() || read_tree(*file, name).status() == recipe.status()) return recipe;
  const std::string message(recipe.status().message());
  return absl::Status(recipe.status().code(),
                      cat("command line: ", without_place(std::string_view(message).substr(name.size() + 1))));
}

std::vector<std::string> notes_on_recipe(const std::string& path) {
  const auto text = read_text_file(path, kMaxYamlBytes);
  if (!text.ok()) return {};
  const auto root = parse_yaml(*text);
  if (!root.ok() || !is_deepspeed_config(**root)) return {};
  std::vector<std::string> notes = deepspeed_notes(**root);
  for (std::string& note : notes) note = cat(shown_path(path), ": ", note);
  return notes;
}

}  // namespace partita
