#include "ir/recipe/deepspeed_config.h"

#include <algorithm>
#include <cmath>

#include "base/cat.h"
#include "base/quote.h"
#include "ir/recipe/yaml_fields.h"

namespace partita {
namespace {

// "auto" stands for "not said", as Hugging Face's Trainer writes it.
bool is_unsaid(const YamlNode& node) {
  return node.kind == YamlNode::Kind::kNull || (node.kind == YamlNode::Kind::kScalar && node.text == "auto");
}

template <typename T>
FieldParser<T> unless_auto(FieldParser<T> parse) {
  return [parse](const YamlNode& node, const std::string& path, T& out) {
    return is_unsaid(node) ? absl::OkStatus() : parse(node, path, out);
  };
}

// Taken, and without meaning here.
template <typename T>
FieldParser<T> ignored() {
  return [](const YamlNode&, const std::string&, T&) { return absl::OkStatus(); };
}

template <typename T>
void ignore(Fields<T>& fields, std::initializer_list<std::string_view> keys) {
  for (std::string_view key : keys) fields.push_back({key, ignored<T>()});
}

struct Optimizer {
  std::string type = "AdamW";
  double lr = 1e-3, eps = 1e-8, weight_decay = 0, momentum = 0;
  std::array<double, 2> betas = {0.9, 0.999};
  bool adam_w_mode = true, nesterov = false;
};

absl::Status parse_optimizer_parameters(const YamlNode& node, const std::string& path, Optimizer& out) {
  static const Fields<Optimizer> kFields = [] {
    Fields<Optimizer> f = {
        {"lr", unless_auto(number(&Optimizer::lr, kNonNegative))},
        {"betas", unless_auto(number_pair(&Optimizer::betas, kFraction))},
        {"eps", unless_auto(number(&Optimizer::eps, kNonNegative))},
        {"weight_decay", unless_auto(number(&Optimizer::weight_decay, kNonNegative))},
        {"momentum", unless_auto(number(&Optimizer::momentum, kNonNegative))},
        {"nesterov", boolean(&Optimizer::nesterov)},
        {"adam_w_mode", boolean(&Optimizer::adam_w_mode)},
    };
    ignore(f, {"torch_adam", "fused", "foreach"});
    return f;
  }();
  return parse_fields(node, path, kFields, out);
}

absl::Status parse_optimizer(const YamlNode& node, const std::string& path, Recipe& out) {
  Optimizer o;
  static const Fields<Optimizer> kFields = {
      {"type", text(&Optimizer::type)},
      {"params",
       [](const YamlNode& params, const std::string& at, Optimizer& optimizer) {
         return is_unsaid(params) ? absl::OkStatus() : parse_optimizer_parameters(params, at, optimizer);
       }},
  };
  PARTITA_RETURN_IF_ERROR(parse_fields(node, path, kFields, o));
  std::string type = o.type;
  std::transform(type.begin(), type.end(), type.begin(), [](unsigned char c) { return std::tolower(c); });
  OptimizerKind kind;
  if (type == "adamw" || (type == "adam" && o.adam_w_mode)) {  // DeepSpeed's Adam decays weights as AdamW unless told
    kind = OptimizerKind::kAdamW;
  } else if (type == "adam") {
    kind = OptimizerKind::kAdam;
  } else if (type == "lamb") {
    kind = OptimizerKind::kLamb;
  } else if (type == "sgd") {
    kind = o.momentum > 0 ? OptimizerKind::kMomentum : OptimizerKind::kSgd;
  } else if (type == "adagrad") {
    kind = OptimizerKind::kAdagrad;
  } else {
    return unexpected(node, join_path(path, "type"), "Adam, AdamW, Lamb, SGD or Adagrad");
  }
  OptimizerRecipe r = default_optimizer(kind);
  r.lr = o.lr;
  r.betas = o.betas;
  r.eps = o.eps;
  r.weight_decay = o.weight_decay;
  r.momentum = o.momentum;
  r.nesterov = o.nesterov;
  out.optimizer = r;
  return absl::OkStatus();
}

struct Scheduler {
  std::string type;
  double min_lr = 0, cos_min_ratio = 0.0001, warmup_min_ratio = 0;
  std::optional<double> max_lr;
  std::optional<int64_t> warmup, total;
  std::string warmup_type = "log";
};

absl::Status parse_scheduler_parameters(const YamlNode& node, const std::string& path, Scheduler& out) {
  static const Fields<Scheduler> kFields = {
      {"warmup_min_lr", unless_auto(number(&Scheduler::min_lr, kNonNegative))},
      {"warmup_max_lr", unless_auto(number(&Scheduler::max_lr, kNonNegative))},
      {"warmup_num_steps", unless_auto(integer(&Scheduler::warmup, 0))},
      {"total_num_steps", unless_auto(integer(&Scheduler::total, 1))},
      {"warmup_type", text(&Scheduler::warmup_type)},
      {"warmup_min_ratio", number(&Scheduler::warmup_min_ratio, kNonNegative)},
      {"cos_min_ratio", number(&Scheduler::cos_min_ratio, kNonNegative)},
      {"last_batch_iteration", ignored<Scheduler>()},
  };
  return parse_fields(node, path, kFields, out);
}

absl::Status parse_scheduler(const YamlNode& node, const std::string& path, Recipe& out) {
  Scheduler s;
  static const Fields<Scheduler> kFields = {
      {"type", text(&Scheduler::type)},
      {"params",
       [](const YamlNode& params, const std::string& at, Scheduler& scheduler) {
         return is_unsaid(params) ? absl::OkStatus() : parse_scheduler_parameters(params, at, scheduler);
       }},
  };
  PARTITA_RETURN_IF_ERROR(parse_fields(node, path, kFields, s));
  auto refuse = [&](std::string_view key, std::string_view expected) {
    return yaml_error(node.line, node.column,
                      cat(join_path(path, key), ": expected ", expected,
                          "; or say `schedule` in a train.yaml that has `deepspeed: THIS FILE`"));
  };
  if (s.type != "WarmupLR" && s.type != "WarmupDecayLR" && s.type != "WarmupCosineLR")
    return refuse("type", cat("WarmupLR, WarmupDecayLR or WarmupCosineLR, found ", s.type));
  if (s.warmup_type != "linear" && s.warmup.value_or(1000) > 0)
    return refuse("params.warmup_type", cat("linear, found ", s.warmup_type, " (its default is log)"));
  if (s.min_lr > 0 || s.warmup_min_ratio > 0) return refuse("params.warmup_min_lr", "0");
  if (s.type != "WarmupLR" && !s.total) return refuse("params.total_num_steps", "the number of steps");
  out.schedule.warmup = s.warmup.value_or(1000);
  out.schedule.total = s.total.value_or(0);
  out.schedule.kind = s.type == "WarmupLR"        ? ScheduleKind::kConstant
                      : s.type == "WarmupDecayLR" ? ScheduleKind::kLinear
                                                  : ScheduleKind::kCosine;
  if (s.max_lr) {
    if (!out.optimizer) out.optimizer = default_optimizer(OptimizerKind::kAdamW);
    out.optimizer->lr = *s.max_lr;
  }
  if (s.type == "WarmupCosineLR" && out.optimizer) out.schedule.min_lr = s.cos_min_ratio * out.optimizer->lr;
  return absl::OkStatus();
}

// {"enabled": true, …}: what it turns on.
absl::Status parse_precision(const YamlNode& node, const std::string& path, Precision precision, Recipe& out) {
  struct Switch {
    bool enabled = false;
    double loss_scale = 0;  // dynamic
    int64_t initial_scale_power = 16, loss_scale_window = 1000, hysteresis = 2;
    double min_loss_scale = 1;
    bool consecutive_hysteresis = false;
  } s;
  static const Fields<Switch> kFields = [] {
    Fields<Switch> f = {{"enabled", unless_auto(boolean(&Switch::enabled))}};
    f.push_back({"loss_scale", unless_auto(number(&Switch::loss_scale, kNonNegative))});
    f.push_back({"initial_scale_power", unless_auto(integer(&Switch::initial_scale_power, 0, 127))});
    f.push_back({"loss_scale_window", unless_auto(integer(&Switch::loss_scale_window, 1, INT64_MAX))});
    f.push_back({"hysteresis", unless_auto(integer(&Switch::hysteresis, 1, INT64_MAX))});
    f.push_back({"min_loss_scale", unless_auto(number(&Switch::min_loss_scale, kNonNegative))});
    f.push_back({"consecutive_hysteresis", unless_auto(boolean(&Switch::consecutive_hysteresis))});
    ignore(f, {"auto_cast", "fp16_master_weights_and_grads", "immediate_grad_update"});
    return f;
  }();
  PARTITA_RETURN_IF_ERROR(parse_fields(node, path, kFields, s));
  if (!s.enabled) return absl::OkStatus();
  if (out.precision != Precision::kFp32)
    return yaml_error(node.line, node.column, cat(path, ": expected fp16 or bf16 to be enabled, found both"));
  out.precision = precision;
  if (s.consecutive_hysteresis)
    return yaml_error(node.line, node.column,
                      cat(path,
                          ".consecutive_hysteresis: expected false, found true; leave the key out: the "
                          "hysteresis is refilled when the scale grows"));
  if (precision != Precision::kFp16) return absl::OkStatus();
  if (s.loss_scale > 0) out.loss_scale.fixed = s.loss_scale;
  out.loss_scale.initial = std::ldexp(1.0, static_cast<int>(s.initial_scale_power));
  out.loss_scale.window = s.loss_scale_window;
  out.loss_scale.hysteresis = s.hysteresis;
  out.loss_scale.minimum = s.min_loss_scale;
  if (s.min_loss_scale > out.loss_scale.initial)
    return yaml_error(node.line, node.column,
                      cat(path, ".min_loss_scale: expected at most 2^initial_scale_power, ", out.loss_scale.initial,
                          ", found ", s.min_loss_scale));
  return absl::OkStatus();
}

struct Zero {
  std::optional<int> stage;
  std::string offload_parameters = "none", offload_optimizer = "none";
  bool old_offload = false, old_offload_parameters = false;  // as before DeepSpeed 0.4
};

absl::Status parse_offload(const YamlNode& node, const std::string& path, std::string& out) {
  struct Offload {
    std::string device = "none";
  } o;
  static const Fields<Offload> kFields = [] {
    Fields<Offload> f = {{"device", text(&Offload::device)}};
    ignore(f, {"pin_memory", "nvme_path", "buffer_count", "buffer_size", "max_in_cpu", "fast_init", "pipeline",
               "pipeline_read", "pipeline_write", "ratio"});
    return f;
  }();
  if (is_unsaid(node)) return absl::OkStatus();
  PARTITA_RETURN_IF_ERROR(parse_fields(node, path, kFields, o));
  if (o.device != "none" && o.device != "cpu") return unexpected(node, join_path(path, "device"), "cpu or none");
  out = o.device;
  return absl::OkStatus();
}

absl::Status parse_zero(const YamlNode& node, const std::string& path, Recipe& out) {
  Zero z;
  static const Fields<Zero> kFields = [] {
    Fields<Zero> f = {
        {"stage", integer(&Zero::stage, 0, 3)},
        {"cpu_offload", boolean(&Zero::old_offload)},
        {"cpu_offload_params", boolean(&Zero::old_offload_parameters)},
        {"offload_param", [](const YamlNode& n, const std::string& at,
                             Zero& zero) { return parse_offload(n, at, zero.offload_parameters); }},
        {"offload_optimizer", [](const YamlNode& n, const std::string& at,
                                 Zero& zero) { return parse_offload(n, at, zero.offload_optimizer); }},
    };
    ignore(f, {"allgather_partitions",
               "allgather_bucket_size",
               "overlap_comm",
               "reduce_scatter",
               "reduce_bucket_size",
               "contiguous_gradients",
               "sub_group_size",
               "stage3_prefetch_bucket_size",
               "stage3_param_persistence_threshold",
               "stage3_model_persistence_threshold",
               "stage3_max_live_parameters",
               "stage3_max_reuse_distance",
               "stage3_gather_16bit_weights_on_model_save",
               "stage3_gather_fp16_weights_on_model_save",
               "stage3_module_granularity_threshold",
               "round_robin_gradients",
               "ignore_unused_parameters",
               "elastic_checkpoint",
               "load_from_fp32_weights",
               "memory_efficient_linear",
               "cpu_offload_use_pin_memory"});
    return f;
  }();
  PARTITA_RETURN_IF_ERROR(parse_fields(node, path, kFields, z));
  if (z.stage) out.pin.zero = z.stage;
  if (z.offload_parameters == "cpu" || z.old_offload_parameters) {
    out.pin.offload = OffloadMode::kAll;
  } else if (z.offload_optimizer == "cpu" || z.old_offload) {
    out.pin.offload = OffloadMode::kOptimizer;
  }
  return absl::OkStatus();
}

// Of DeepSpeed's own machinery.
constexpr std::string_view kWithoutEffect[] = {"steps_per_print",
                                               "wall_clock_breakdown",
                                               "dump_state",
                                               "prescale_gradients",
                                               "gradient_predivide_factor",
                                               "sparse_gradients",
                                               "communication_data_type",
                                               "comms_logger",
                                               "flops_profiler",
                                               "tensorboard",
                                               "wandb",
                                               "csv_monitor",
                                               "zero_allow_untested_optimizer",
                                               "zero_force_ds_cpu_optimizer",
                                               "checkpoint",
                                               "aio",
                                               "activation_checkpointing",
                                               "memory_breakdown",
                                               "disable_allgather",
                                               "data_types"};

void find_auto(const YamlNode& node, const std::string& path, std::vector<std::string>& out) {
  if (node.kind == YamlNode::Kind::kScalar && node.text == "auto") out.push_back(path);
  for (const YamlEntry& e : node.entries) find_auto(*e.value, join_path(path, e.key), out);
}

const Fields<Recipe>& config_fields() {
  static const Fields<Recipe> kFields = [] {
    auto batch = [](auto member) {
      return FieldParser<Recipe>([member](const YamlNode& node, const std::string& path, Recipe& out) -> absl::Status {
        if (is_unsaid(node)) return absl::OkStatus();
        PARTITA_ASSIGN_OR_RETURN(out.batch.*member, read_integer(node, path, 1, kLargestCount));
        return absl::OkStatus();
      });
    };
    Fields<Recipe> f = {
        {"train_batch_size", batch(&BatchRecipe::global)},
        {"train_micro_batch_size_per_gpu", batch(&BatchRecipe::micro)},
        {"gradient_accumulation_steps", batch(&BatchRecipe::accumulation)},
        {"optimizer", parse_optimizer},
        {"scheduler", parse_scheduler},
        {"gradient_clipping", unless_auto<Recipe>([](const YamlNode& node, const std::string& path, Recipe& out) {
           auto clip = read_number(node, path, kNonNegative);
           if (clip.ok() && *clip > 0) out.clip_grad_norm = *clip;
           return clip.status();
         })},
        {"fp16", [](const YamlNode& node, const std::string& path,
                    Recipe& out) { return parse_precision(node, path, Precision::kFp16, out); }},
        {"bf16", [](const YamlNode& node, const std::string& path,
                    Recipe& out) { return parse_precision(node, path, Precision::kBf16, out); }},
        {"zero_optimization", parse_zero},
        {"seed", integer(&Recipe::seed, 0, INT64_MAX)},
    };
    for (std::string_view key : kWithoutEffect) f.push_back({key, ignored<Recipe>()});
    return f;
  }();
  return kFields;
}

}  // namespace

bool is_deepspeed_config(const YamlNode& root) {
  return std::any_of(root.entries.begin(), root.entries.end(), [](const YamlEntry& e) {
    return e.key == "zero_optimization" || e.key == "train_batch_size" || e.key == "train_micro_batch_size_per_gpu" ||
           e.key == "gradient_accumulation_steps" || e.key == "fp16" || e.key == "bf16";
  });
}

absl::Status parse_deepspeed_config(const YamlNode& root, Recipe& out) {
  PARTITA_RETURN_IF_ERROR(parse_fields(root, "", config_fields(), out));
  BatchRecipe& b = out.batch;
  if (b.global && b.accumulation && b.micro && *b.global % (*b.micro * *b.accumulation) != 0) {
    return yaml_error(root.line, root.column,
                      cat("train_batch_size: expected a multiple of train_micro_batch_size_per_gpu x "
                          "gradient_accumulation_steps = ",
                          *b.micro * *b.accumulation, ", found ", *b.global));
  }
  return absl::OkStatus();
}

std::vector<std::string> deepspeed_notes(const YamlNode& root) {
  std::vector<std::string> notes, open, idle;
  find_auto(root, "", open);
  if (!open.empty())
    notes.push_back(cat("\"auto\", which nobody fills in here, is the default: ", quote_list(open, 20)));
  for (const YamlEntry& e : root.entries) {
    if (std::count(std::begin(kWithoutEffect), std::end(kWithoutEffect), e.key) > 0) idle.push_back(e.key);
  }
  if (!idle.empty()) notes.push_back(cat("without effect here: ", quote_list(idle, 20)));
  return notes;
}

}  // namespace partita
