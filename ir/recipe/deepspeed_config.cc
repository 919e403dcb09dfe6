#include "ir/recipe/deepspeed_config.h"

#include <algorithm>
#include <cmath>

#include "base/cat.h"
#include "base/quote.h"

namespace partita {
namespace {

constexpr std::string_view kOrSay = "or say `schedule` in a train.yaml that has `deepspeed: THIS FILE`";

struct Precisions {
  bool enabled = false, consecutive_hysteresis = false;
  double loss_scale = 0;  // dynamic
  int64_t initial_scale_power = 16, loss_scale_window = 1000, hysteresis = 2;
  double min_loss_scale = 1;
};

// What the keys say, before they are seen together.
struct Draft {
  ImportedConfig config;
  std::string type = "AdamW";
  OptimizerRule rule;
  bool adam_w_mode = true;
  std::string scheduler, warmup_type = "log";
  double warmup_min_lr = 0, warmup_min_ratio = 0, cos_min_ratio = 0.0001;
  std::optional<double> warmup_max_lr;
  std::optional<int64_t> warmup, total;
  Precisions fp16, bf16;
  double offload_ratio = 1;
};

bool is_true(const YamlNode& node) { return node.kind == YamlNode::Kind::kScalar && node.text == "true"; }

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

absl::StatusOr<KeyOutcome> read_optimizer_type(const YamlNode& node, const std::string& path, Draft& out) {
  PARTITA_ASSIGN_OR_RETURN(out.type, read_text(node, path));
  const std::string type = lower(out.type);
  for (std::string_view known : {"adam", "adamw", "lamb", "sgd", "adagrad", "lion"}) {
    if (type != known) continue;
    return KeyOutcome{KeyFate::kTaken, type == "lamb"
                                           ? "optimizer.kind; its ratio of norms is free, not held to 0.01 … 10"
                                           : "optimizer.kind"};
  }
  return unexpected(node, path, "Adam, AdamW, Lamb, Lion, SGD or Adagrad");
}

// Into train.yaml's kinds. DeepSpeed's Adam decays weights as AdamW unless told.
OptimizerKind kind_of(const Draft& d) {
  const std::string type = lower(d.type);
  if (type == "adamw" || (type == "adam" && d.adam_w_mode)) return OptimizerKind::kAdamW;
  if (type == "adam") return OptimizerKind::kAdam;
  if (type == "lamb") return OptimizerKind::kLamb;
  if (type == "lion") return OptimizerKind::kLion;
  if (type == "adagrad") return OptimizerKind::kAdagrad;
  return d.rule.momentum > 0 ? OptimizerKind::kMomentum : OptimizerKind::kSgd;
}

void add_optimizer(KeyRows<Draft>& rows) {
  auto rule = [&](std::string key, std::string target, FieldParser<OptimizerRule> parse) {
    rows.push_back({key, becomes<Draft>(target, within(&Draft::rule, parse))});
  };
  rows.push_back({"optimizer.type", read_optimizer_type});
  rule("optimizer.params.lr", "optimizer.lr", number(&OptimizerRule::lr, kNonNegative));
  rule("optimizer.params.betas", "optimizer.betas", numbers(&OptimizerRule::betas, kFraction));
  rule("optimizer.params.eps", "optimizer.eps", number(&OptimizerRule::eps, kNonNegative));
  rule("optimizer.params.weight_decay", "optimizer.weight_decay", number(&OptimizerRule::weight_decay, kNonNegative));
  rule("optimizer.params.momentum", "optimizer.momentum", number(&OptimizerRule::momentum, kNonNegative));
  rule("optimizer.params.nesterov", "optimizer.nesterov", boolean(&OptimizerRule::nesterov));
  rows.push_back({"optimizer.params.adam_w_mode", becomes<Draft>("optimizer.kind", boolean(&Draft::adam_w_mode))});
  rows.push_back({"optimizer.params.bias_correction",
                  idle_at<Draft>({"true"}, "moments are always corrected", "Adam without it is not done here")});
  rows.push_back({"optimizer.params.amsgrad", idle_at<Draft>({"false"}, "it is off", "AMSGrad is not done here")});
  add_rows(
      rows,
      {"optimizer.params.torch_adam", "optimizer.params.fused", "optimizer.params.foreach", "optimizer.legacy_fusion"},
      idle<Draft>("the update is one compiled kernel in any case"));
}

absl::StatusOr<KeyOutcome> read_scheduler_type(const YamlNode& node, const std::string& path, Draft& out) {
  PARTITA_ASSIGN_OR_RETURN(out.scheduler, read_text(node, path));
  if (out.scheduler == "WarmupLR" || out.scheduler == "WarmupDecayLR" || out.scheduler == "WarmupCosineLR")
    return KeyOutcome{KeyFate::kTaken, "schedule.kind"};
  return unexpected(node, path, cat("WarmupLR, WarmupDecayLR or WarmupCosineLR (", kOrSay, ")"));
}

void add_scheduler(KeyRows<Draft>& rows) {
  rows.push_back({"scheduler.type", read_scheduler_type});
  rows.push_back({"scheduler.params.warmup_min_lr",
                  becomes<Draft>("schedule.warmup_start", number(&Draft::warmup_min_lr, kNonNegative))});
  rows.push_back(
      {"scheduler.params.warmup_max_lr", becomes<Draft>("optimizer.lr", number(&Draft::warmup_max_lr, kNonNegative))});
  rows.push_back({"scheduler.params.warmup_num_steps", becomes<Draft>("schedule.warmup", integer(&Draft::warmup, 0))});
  rows.push_back({"scheduler.params.total_num_steps", becomes<Draft>("schedule.total", integer(&Draft::total, 1))});
  rows.push_back(
      {"scheduler.params.warmup_type", becomes<Draft>("schedule: it rises along a line", text(&Draft::warmup_type))});
  rows.push_back({"scheduler.params.warmup_min_ratio",
                  becomes<Draft>("schedule.warmup_start", number(&Draft::warmup_min_ratio, kFraction))});
  rows.push_back({"scheduler.params.cos_min_ratio",
                  becomes<Draft>("schedule.min_lr", number(&Draft::cos_min_ratio, kNonNegative))});
  rows.push_back(
      {"scheduler.params.last_batch_iteration", idle<Draft>("a resumed run goes on at its checkpoint's step")});
}

absl::StatusOr<KeyOutcome> read_communication_type(const YamlNode& node, const std::string& path, Draft& out) {
  PARTITA_ASSIGN_OR_RETURN(const std::string type, read_text(node, path));
  if (type == "fp32") return KeyOutcome{KeyFate::kIdle, "gradients are summed in fp32 in any case"};
  if (type != "bf16" && type != "bfp16")
    return unexpected(node, path, "fp32 or bfp16 (gradients are summed in fp32, or in bf16 by `compress: bf16`)");
  out.config.recipe.compress = Compression::kBf16;
  return KeyOutcome{KeyFate::kTaken, "compress: bf16"};
}

// {"enabled": true, …} of a tracker: its folder is where the numbers go.
absl::StatusOr<KeyOutcome> read_tensorboard(const YamlNode& node, const std::string& path, Draft& out) {
  if (node.kind != YamlNode::Kind::kMapping) return unexpected(node, path, "a mapping");
  const YamlEntry *enabled = find_entry(node, "enabled"), *folder = find_entry(node, "output_path");
  if (enabled != nullptr && !is_true(*enabled->value)) return KeyOutcome{KeyFate::kIdle, "it is off"};
  if (enabled == nullptr) return KeyOutcome{KeyFate::kIdle, "it is off unless `enabled` is true"};
  std::string to = folder == nullptr || is_open(*folder->value) ? "tensorboard" : folder->value->text;
  if (!to.ends_with('/')) to += '/';
  out.config.flags.insert(out.config.flags.end(), {"--metrics", to});
  return KeyOutcome{KeyFate::kTaken, cat("--metrics ", to, " (TensorBoard's files)")};
}

KeyReader<Draft> tracker(std::string instead) {
  return [instead](const YamlNode& node, const std::string& path, Draft&) -> absl::StatusOr<KeyOutcome> {
    if (node.kind != YamlNode::Kind::kMapping) return unexpected(node, path, "a mapping");
    const YamlEntry* enabled = find_entry(node, "enabled");
    const bool on = enabled != nullptr && is_true(*enabled->value);
    return KeyOutcome{KeyFate::kIdle, on ? instead : "it is off unless `enabled` is true"};
  };
}

// A feature by its section: nothing where it is off.
KeyReader<Draft> off_only(std::string instead) {
  return [instead](const YamlNode& node, const std::string& path, Draft&) -> absl::StatusOr<KeyOutcome> {
    const YamlEntry* enabled = node.kind == YamlNode::Kind::kMapping ? find_entry(node, "enabled") : nullptr;
    if ((enabled != nullptr && enabled->value->text == "false") || node.text == "false" ||
        (node.kind == YamlNode::Kind::kMapping && node.entries.empty()))
      return KeyOutcome{KeyFate::kIdle, "it is off"};
    return yaml_error(node.line, node.column,
                      cat(path, ": expected it to be off, found ", value_text(node), "; ", instead));
  };
}

void add_precision(KeyRows<Draft>& rows) {
  auto add = [&](std::string key, Precisions Draft::*member, std::string target, FieldParser<Precisions> parse) {
    rows.push_back({key, becomes<Draft>(target, within(member, parse))});
  };
  add("fp16.enabled", &Draft::fp16, "precision: fp16", boolean(&Precisions::enabled));
  add("fp16.loss_scale", &Draft::fp16, "loss_scale", number(&Precisions::loss_scale, kNonNegative));
  add("fp16.initial_scale_power", &Draft::fp16, "loss_scale.initial",
      integer(&Precisions::initial_scale_power, 0, 127));
  add("fp16.loss_scale_window", &Draft::fp16, "loss_scale.window",
      integer(&Precisions::loss_scale_window, 1, INT64_MAX));
  add("fp16.hysteresis", &Draft::fp16, "loss_scale.hysteresis", integer(&Precisions::hysteresis, 1, INT64_MAX));
  add("fp16.min_loss_scale", &Draft::fp16, "loss_scale.minimum", number(&Precisions::min_loss_scale, kNonNegative));
  rows.push_back({"fp16.consecutive_hysteresis",
                  idle_at<Draft>({"false"}, "the hysteresis is refilled when the scale grows",
                                 "leave the key out: the hysteresis is refilled when the scale grows")});
  add("bf16.enabled", &Draft::bf16, "precision: bf16", boolean(&Precisions::enabled));
  rows.push_back(
      {"bfloat16.enabled", becomes<Draft>("precision: bf16", within(&Draft::bf16, boolean(&Precisions::enabled)))});
  add_rows(rows,
           {"bf16.loss_scale", "bf16.initial_scale_power", "bf16.loss_scale_window", "bf16.hysteresis",
            "bf16.min_loss_scale"},
           idle<Draft>("bf16 needs no loss scale"));
  rows.push_back({"fp16.auto_cast", idle<Draft>("inputs are cast where the program computes in 16 bits")});
  add_rows(rows,
           {"fp16.fp16_master_weights_and_grads", "bf16.bf16_master_weights_and_grads", "bf16.bf16_optimizer_states"},
           idle_at<Draft>({"false"}, "weights and moments are kept in fp32",
                          "they are kept in fp32 here: more bytes, as `partita plan` says"));
  add_rows(rows, {"bf16.immediate_grad_update", "bf16.check_grad_overflow"},
           idle<Draft>("of DeepSpeed's bf16 optimizer; gradients that are not finite: `run.on_nonfinite`"));
  rows.push_back({"amp", off_only("say bf16 or fp16")});
  rows.push_back({"torch_autocast", off_only("say bf16 or fp16")});
}

absl::StatusOr<KeyOutcome> read_offload(const YamlNode& node, const std::string& path, Draft& out, bool parameters) {
  PARTITA_ASSIGN_OR_RETURN(const std::string device, read_text(node, path));
  if (device == "none") return KeyOutcome{KeyFate::kIdle, "nothing is offloaded"};
  if (device != "cpu") return unexpected(node, path, "cpu or none");
  std::optional<OffloadMode>& pin = out.config.recipe.pin.offload;
  if (parameters || pin != OffloadMode::kAll) pin = parameters ? OffloadMode::kAll : OffloadMode::kOptimizer;
  return KeyOutcome{KeyFate::kTaken, parameters ? "pin.offload: all" : "pin.offload: optimizer"};
}

KeyReader<Draft> offload(bool parameters) {
  return [parameters](const YamlNode& node, const std::string& path, Draft& out) {
    return read_offload(node, path, out, parameters);
  };
}

// Before DeepSpeed 0.4: true or false.
KeyReader<Draft> old_offload(bool parameters) {
  return [parameters](const YamlNode& node, const std::string& path, Draft& out) -> absl::StatusOr<KeyOutcome> {
    PARTITA_ASSIGN_OR_RETURN(const bool on, read_bool(node, path));
    YamlNode device = node;
    device.text = on ? "cpu" : "none";
    return read_offload(device, path, out, parameters);
  };
}

void add_zero(KeyRows<Draft>& rows) {
  rows.push_back(
      {"zero_optimization.stage", becomes<Draft>("pin.zero", in_pins<Draft>(integer(&PinRecipe::zero, 0, 3)))});
  rows.push_back({"zero_optimization.cpu_offload", old_offload(false)});
  rows.push_back({"zero_optimization.cpu_offload_params", old_offload(true)});
  rows.push_back({"zero_optimization.offload_optimizer.device", offload(false)});
  rows.push_back({"zero_optimization.offload_param.device", offload(true)});
  for (std::string_view section : {"zero_optimization.offload_optimizer.", "zero_optimization.offload_param."})
    add_rows(rows,
             {"pin_memory", "nvme_path", "buffer_count", "buffer_size", "max_in_cpu", "fast_init", "pipeline",
              "pipeline_read", "pipeline_write"},
             idle<Draft>("how states move between host and device is planned"), section);
  rows.push_back({"zero_optimization.offload_optimizer.ratio",
                  becomes<Draft>("pin.offload_fraction", number(&Draft::offload_ratio, kShare))});
  add_rows(rows,
           {"allgather_partitions",
            "allgather_bucket_size",
            "overlap_comm",
            "reduce_scatter",
            "reduce_bucket_size",
            "contiguous_gradients",
            "sub_group_size",
            "round_robin_gradients",
            "use_multi_rank_bucket_allreduce",
            "stage3_prefetch_bucket_size",
            "stage3_param_persistence_threshold",
            "stage3_model_persistence_threshold",
            "stage3_max_live_parameters",
            "stage3_max_reuse_distance",
            "stage3_module_granularity_threshold",
            "leaf_module",
            "param_persistence_threshold",
            "model_persistence_threshold",
            "max_live_parameters",
            "max_reuse_distance",
            "prefetch_bucket_size",
            "memory_efficient_linear",
            "zeropp_loco_param"},
           idle<Draft>("what is gathered and summed when, and in what pieces, is planned"), "zero_optimization.");
  add_rows(rows,
           {"stage3_gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save",
            "gather_16bit_weights_on_model_save", "elastic_checkpoint", "load_from_fp32_weights",
            "pipeline_loading_checkpoint"},
           idle<Draft>("checkpoints hold whole fp32 tensors, whatever the layout"), "zero_optimization.");
  add_rows(rows,
           {"ignore_unused_parameters", "cpu_offload_use_pin_memory", "override_module_apply",
            "log_trace_cache_warnings", "stage3_use_all_reduce_for_fetch_params"},
           idle<Draft>("of DeepSpeed's hooks; the graph says what is used when"), "zero_optimization.");
  rows.push_back({"zero_optimization.zero_hpz_partition_size",
                  idle_at<Draft>({"1"}, "no second partition", "pin zero_group: that many ranks hold the parameters")});
  rows.push_back({"zero_optimization.mics_shard_size",
                  becomes<Draft>("pin.zero_group",
                                 in_pins<Draft>([](const YamlNode& node, const std::string& path, PinRecipe& out) {
                                   if (node.text == "-1") return absl::OkStatus();  // all ranks
                                   return integer(&PinRecipe::zero_group, 1)(node, path, out);
                                 }))});
  rows.push_back({"zero_optimization.mics_hierarchical_params_gather",
                  idle<Draft>("how a gather goes over the links is planned")});
  add_rows(rows, {"zero_quantized_weights", "zero_quantized_gradients", "zero_quantized_nontrainable_weights"},
           idle_at<Draft>({"false"}, "it is off", "gradients travel in fewer bytes by `compress: int8`"),
           "zero_optimization.");
}

absl::StatusOr<KeyOutcome> read_cpu_checkpointing(const YamlNode& node, const std::string& path, Draft& out) {
  PARTITA_ASSIGN_OR_RETURN(const bool on, read_bool(node, path));
  if (!on) return KeyOutcome{KeyFate::kIdle, "which activations wait where is planned"};
  out.config.recipe.recompute = RecomputeMode::kFullOffload;
  return KeyOutcome{KeyFate::kTaken, "recompute: full_offload"};
}

void add_others(KeyRows<Draft>& rows) {
  rows.push_back({"train_batch_size", becomes<Draft>("batch.global", in_batch<Draft>(&BatchRecipe::global))});
  rows.push_back(
      {"train_micro_batch_size_per_gpu", becomes<Draft>("batch.micro", in_batch<Draft>(&BatchRecipe::micro))});
  rows.push_back({"gradient_accumulation_steps",
                  becomes<Draft>("batch.accumulation", in_batch<Draft>(&BatchRecipe::accumulation))});
  rows.push_back({"gradient_clipping", clipping<Draft>()});
  rows.push_back({"seed", becomes<Draft>("seed", in_recipe<Draft>(integer(&Recipe::seed, 0, INT64_MAX)))});
  rows.push_back({"communication_data_type", read_communication_type});
  rows.push_back({"steps_per_print", run_flag<Draft>("--log-every")});
  rows.push_back({"tensorboard", read_tensorboard});
  rows.push_back({"wandb", tracker("numbers go to `--metrics FILE`; from Python to partita.callbacks.WandB")});
  rows.push_back({"csv_monitor", tracker("numbers go to `--metrics FILE.csv`")});
  rows.push_back({"comet", tracker("numbers go to `--metrics FILE`; from Python to any callback")});
  add_rows(rows, {"comms_logger", "flops_profiler", "wall_clock_breakdown", "memory_breakdown", "timers"},
           idle<Draft>("`--profile FILE` says where a step's time goes, `partita plan` what each rank holds"));
  rows.push_back({"prescale_gradients",
                  idle<Draft>("gradients are those of the mean over all samples, in whatever order they are summed")});
  rows.push_back(
      {"gradient_predivide_factor", idle<Draft>("gradients are those of the mean over all samples, summed in fp32")});
  rows.push_back({"sparse_gradients", idle<Draft>("gradients of embeddings are dense here, of the same values")});
  rows.push_back({"activation_checkpointing.cpu_checkpointing", read_cpu_checkpointing});
  add_rows(rows,
           {"partition_activations", "contiguous_memory_optimization", "number_checkpoints",
            "synchronize_checkpoint_boundary", "profile"},
           idle<Draft>("what is computed again in backward is planned, or said by `recompute`"),
           "activation_checkpointing.");
  rows.push_back({"data_types.grad_accum_dtype", idle<Draft>("gradients are accumulated in fp32 in any case")});
  add_rows(rows, {"aio", "checkpoint", "nebula", "use_node_local_storage", "load_universal_checkpoint"},
           idle<Draft>("of DeepSpeed's files; checkpoints here: `--checkpoint FOLDER`"));
  add_rows(rows,
           {"dump_state", "disable_allgather", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer",
            "graph_harvesting", "compile", "dataloader_drop_last", "pipeline"},
           idle<Draft>("of DeepSpeed's engine, which takes no part here"));
  rows.push_back({"tensor_parallel.autotp_size", axis_pin<Draft>("tensor")});
  for (std::string_view key :
       {"elasticity", "autotuning", "curriculum_learning", "data_efficiency", "progressive_layer_drop", "eigenvalue",
        "quantize_training", "compression_training", "sparse_attention", "hybrid_engine"})
    rows.push_back(
        {std::string(key), off_only("it changes what is trained, and has no counterpart here; leave it out")});
}

const KeyRows<Draft>& deepspeed_rows() {
  static const KeyRows<Draft> kRows = [] {
    KeyRows<Draft> rows;
    add_others(rows);
    add_optimizer(rows);
    add_scheduler(rows);
    add_precision(rows);
    add_zero(rows);
    return rows;
  }();
  return kRows;
}

void finish_optimizer(const YamlNode& root, Draft& d) {
  const YamlEntry* said = find_entry(root, "optimizer");
  if ((said == nullptr || is_open(*said->value)) && !d.warmup_max_lr) return;
  OptimizerRecipe r = default_optimizer(kind_of(d));
  r.lr = d.rule.lr;
  r.betas = d.rule.betas;
  r.eps = d.rule.eps;
  r.weight_decay = d.rule.weight_decay;
  r.momentum = d.rule.momentum;
  r.nesterov = d.rule.nesterov;
  if (r.kind == OptimizerKind::kAdagrad) {  // its defaults are torch's, not those of Adam as the others'
    const OptimizerRecipe torchs = default_optimizer(r.kind);
    if (!has_key(d.config.keys, "optimizer.params.lr")) r.lr = torchs.lr;
    if (!has_key(d.config.keys, "optimizer.params.eps")) r.eps = torchs.eps;
  }
  if (said == nullptr || is_open(*said->value)) r = default_optimizer(OptimizerKind::kAdamW);
  if (d.warmup_max_lr) r.lr = *d.warmup_max_lr;
  d.config.recipe.optimizer = r;
}

void finish_scheduler(const YamlNode& root, Draft& d) {
  std::vector<ImportedKey>& keys = d.config.keys;
  const YamlEntry* said = find_entry(root, "scheduler");
  if (said == nullptr || is_open(*said->value)) return;
  if (d.scheduler.empty() && !has_key(keys, "scheduler.type"))
    return refuse_key(keys, "scheduler.type", "expected WarmupLR, WarmupDecayLR or WarmupCosineLR, found nothing");
  if (d.warmup_type != "linear" && d.warmup.value_or(1000) > 0)
    refuse_key(keys, "scheduler.params.warmup_type",
               cat("expected linear, found ", d.warmup_type, " (its default is log); ", kOrSay));
  if (d.scheduler != "WarmupLR" && !d.total)
    refuse_key(keys, "scheduler.params.total_num_steps", cat("expected the number of steps, found nothing; ", kOrSay));
  const bool cosine = d.scheduler == "WarmupCosineLR";
  const double lr = d.config.recipe.optimizer ? d.config.recipe.optimizer->lr : 0;
  const bool highest =  // "auto", too, which is filled in with the optimizer's
      std::any_of(keys.begin(), keys.end(), [](auto& k) { return k.key == "scheduler.params.warmup_max_lr"; });
  if (!cosine && !highest && d.config.recipe.optimizer && lr != 1e-3)
    refuse_key(keys, "scheduler.params.warmup_max_lr",
               cat("expected the highest rate, found nothing: DeepSpeed takes 0.001 then, not the optimizer's ", lr,
                   "; ", kOrSay));
  ScheduleRecipe& s = d.config.recipe.schedule;
  s.warmup = d.warmup.value_or(1000);
  s.total = d.total.value_or(0);
  s.kind = d.scheduler == "WarmupLR"        ? ScheduleKind::kConstant
           : d.scheduler == "WarmupDecayLR" ? ScheduleKind::kLinear
                                            : ScheduleKind::kCosine;
  if (cosine) s.min_lr = d.cos_min_ratio * lr;
  if (!cosine && d.warmup_min_lr > 0 && d.warmup_min_lr >= lr)
    refuse_key(keys, "scheduler.params.warmup_min_lr", cat("expected less than the rate, ", lr, "; ", kOrSay));
  // DeepSpeed's second step has the first one's rate, and so on: the rate rises a step earlier here.
  if (s.warmup > 0) s.warmup_start = cosine ? d.warmup_min_ratio : lr > 0 ? d.warmup_min_lr / lr : 0;
  if (!d.warmup) note_default(keys, "scheduler.params.warmup_num_steps", "1000", "schedule.warmup: 1000");
}

void finish_precision(Draft& d) {
  Recipe& r = d.config.recipe;
  if (d.fp16.enabled && d.bf16.enabled)
    return refuse_key(d.config.keys, "bf16.enabled", "expected fp16 or bf16 to be enabled, found both");
  r.precision = d.fp16.enabled ? Precision::kFp16 : d.bf16.enabled ? Precision::kBf16 : Precision::kFp32;
  if (!d.fp16.enabled) return;
  LossScaleRecipe& scale = r.loss_scale;
  if (d.fp16.loss_scale > 0) scale.fixed = d.fp16.loss_scale;
  scale.initial = std::ldexp(1.0, static_cast<int>(d.fp16.initial_scale_power));
  scale.window = d.fp16.loss_scale_window;
  scale.hysteresis = d.fp16.hysteresis;
  scale.minimum = d.fp16.min_loss_scale;
  if (scale.minimum > scale.initial)
    refuse_key(d.config.keys, "fp16.min_loss_scale",
               cat("expected at most 2^initial_scale_power, ", scale.initial, ", found ", scale.minimum));
}

void finish_offload(Draft& d) {
  PinRecipe& pin = d.config.recipe.pin;
  if (d.offload_ratio == 1 || pin.offload.value_or(OffloadMode::kNone) == OffloadMode::kNone) return;
  pin.offload_fraction = d.offload_ratio;
  if (pin.offload == OffloadMode::kAll)
    refuse_key(
        d.config.keys, "zero_optimization.offload_optimizer.ratio",
        cat("expected 1 beside offload_param, which takes parameters and all of their states to the host; found ",
            d.offload_ratio));
}

}  // namespace

bool is_deepspeed_config(const YamlNode& root) {
  return std::any_of(root.entries.begin(), root.entries.end(), [](const YamlEntry& e) {
    return e.key == "zero_optimization" || e.key == "train_batch_size" || e.key == "train_micro_batch_size_per_gpu" ||
           e.key == "gradient_accumulation_steps" || e.key == "fp16" || e.key == "bf16";
  });
}

ImportedConfig import_deepspeed_config(const YamlNode& root) {
  Draft d;
  d.config.program = "DeepSpeed";
  import_keys(root, "", deepspeed_rows(), d, d.config.keys);
  finish_optimizer(root, d);
  finish_scheduler(root, d);
  finish_precision(d);
  finish_offload(d);
  const BatchRecipe& b = d.config.recipe.batch;
  if (b.global && b.accumulation && b.micro && *b.global % (*b.micro * *b.accumulation) != 0)
    refuse_key(d.config.keys, "train_batch_size",
               cat("expected a multiple of train_micro_batch_size_per_gpu x gradient_accumulation_steps = ",
                   *b.micro * *b.accumulation, ", found ", *b.global));
  return std::move(d.config);
}

absl::Status parse_deepspeed_config(const YamlNode& root, Recipe& out) {
  ImportedConfig config = import_deepspeed_config(root);
  PARTITA_RETURN_IF_ERROR(first_refusal(config.keys));
  out = std::move(config.recipe);
  return absl::OkStatus();
}

std::vector<std::string> deepspeed_notes(const YamlNode& root) {
  std::vector<std::string> notes, open, without;
  ImportedConfig config = import_deepspeed_config(root);
  for (const ImportedKey& k : config.keys) {
    if (k.fate == KeyFate::kOpen) open.push_back(k.key);
    if (k.fate == KeyFate::kIdle) without.push_back(k.key);
  }
  if (!open.empty())
    notes.push_back(cat("\"auto\", which nobody fills in here, is the default: ", quote_list(open, 20)));
  if (!without.empty())
    notes.push_back(cat("without effect here, as `partita import-config` says key by key: ", quote_list(without, 20)));
  std::string flags;
  for (const std::string& word : config.flags) append(flags, " ", word);
  if (!flags.empty()) notes.push_back(cat("flags of the run that it stands for, and that you say:", flags));
  return notes;
}

}  // namespace partita
