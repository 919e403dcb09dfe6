#include "tools/import_config/torchtitan_config.h"

#include <cmath>

#include "base/cat.h"

namespace partita {
namespace {

// With torchtitan's defaults.
struct Draft {
  ImportedConfig config;
  OptimizerRule rule = {.lr = 8e-4, .betas = {0.9, 0.95}, .eps = 1e-8, .weight_decay = 0.1};
  std::string optimizer = "AdamW", decay_type = "linear";
  int64_t warmup = 200, steps = 10000, replicas = 1, shards = -1, global_batch = -1;
  std::optional<double> decay_ratio;
  double min_lr_factor = 0, max_norm = 1;
  bool checkpoints = false, evaluates = false, tensorboard = false;
  std::string folder = "checkpoint", tensorboard_folder = "tb";
  int64_t interval = 500, keep = 10;
};
using Rows = KeyRows<Draft>;
constexpr auto kTaken = KeyFate::kTaken, kIdle = KeyFate::kIdle;

// A number of ranks, or -1 for those that are left.
FieldParser<Draft> degree(int64_t Draft::*member) {
  return [member](const YamlNode& node, const std::string& path, Draft& out) -> absl::Status {
    PARTITA_ASSIGN_OR_RETURN(out.*member, read_integer(node, path, -1, 1 << 24));
    return absl::OkStatus();
  };
}

KeyReader<Draft> off(std::string instead) { return idle_at<Draft>({"false"}, "it is off", instead); }

void add_training(Rows& rows) {
  rows.push_back({"optimizer.name",
                  one_of<Draft>({{"AdamW", {kTaken, "optimizer.kind: adamw"}, [](Draft& d) { d.optimizer = "AdamW"; }},
                                 {"Adam", {kTaken, "optimizer.kind: adam"}, [](Draft& d) { d.optimizer = "Adam"; }}})});
  rows.push_back(
      {"optimizer.lr", becomes<Draft>("optimizer.lr", within(&Draft::rule, number(&OptimizerRule::lr, kPositive)))});
  rows.push_back({"optimizer.eps",
                  becomes<Draft>("optimizer.eps", within(&Draft::rule, number(&OptimizerRule::eps, kNonNegative)))});
  rows.push_back({"optimizer.weight_decay",
                  becomes<Draft>("optimizer.weight_decay",
                                 within(&Draft::rule, number(&OptimizerRule::weight_decay, kNonNegative)))});
  rows.push_back({"optimizer.beta1", becomes<Draft>("optimizer.betas", beta<Draft>(0))});
  rows.push_back({"optimizer.beta2", becomes<Draft>("optimizer.betas", beta<Draft>(1))});
  add_rows(rows, {"implementation", "fused", "early_step_in_backward"},
           idle<Draft>("the update is compiled, and planned where it costs least"), "optimizer.");
  rows.push_back({"lr_scheduler.warmup_steps", becomes<Draft>("schedule.warmup", integer(&Draft::warmup, 0))});
  rows.push_back(
      {"lr_scheduler.decay_ratio", becomes<Draft>("schedule.decay", number(&Draft::decay_ratio, kNonNegative))});
  rows.push_back(
      {"lr_scheduler.decay_type",
       one_of<Draft>({{"linear", {kTaken, "schedule.kind"}, [](Draft& d) { d.decay_type = "linear"; }},
                      {"cosine", {kTaken, "schedule.kind: cosine"}, [](Draft& d) { d.decay_type = "cosine"; }}})});
  add_rows(rows, {"min_lr_factor", "lr_min"},
           becomes<Draft>("schedule.min_lr", number(&Draft::min_lr_factor, kFraction)), "lr_scheduler.");
  rows.push_back({"lr_scheduler.total_steps", becomes<Draft>("schedule.total", integer(&Draft::steps, 1))});
  add_rows(rows, {"local_batch_size", "batch_size"},
           becomes<Draft>("batch.micro", in_batch<Draft>(&BatchRecipe::micro)), "training.");
  rows.push_back({"training.global_batch_size", becomes<Draft>("batch.global", degree(&Draft::global_batch))});
  rows.push_back(
      {"training.seq_len", idle<Draft>("the exported graph has its length; where it is open: `bind: {NAME: LENGTH}`")});
  rows.push_back({"training.max_norm", becomes<Draft>("clip_grad_norm", number(&Draft::max_norm, kNonNegative))});
  rows.push_back({"training.steps", becomes<Draft>("--steps", integer(&Draft::steps, 1))});
  rows.push_back(
      {"training.dtype", idle_at<Draft>({"float32"}, "weights are kept in fp32", "weights are kept in fp32 here")});
  rows.push_back(
      {"training.mixed_precision_param",
       one_of<Draft>({{"bfloat16", {kTaken, "precision: bf16"}}, {"float32", {kTaken, "precision: fp32"}, [](Draft& d) {
                                                                    d.config.recipe.precision = Precision::kFp32;
                                                                  }}})});
  rows.push_back(
      {"training.mixed_precision_reduce", one_of<Draft>({{"float32", {kIdle, "gradients are summed in fp32"}},
                                                         {"bfloat16", {kTaken, "compress: bf16"}, [](Draft& d) {
                                                            d.config.recipe.compress = Compression::kBf16;
                                                          }}})});
  rows.push_back({"training.enable_cpu_offload", one_of<Draft>({{"false", {kIdle, "nothing is offloaded"}},
                                                                {"true", {kTaken, "pin.offload: all"}, [](Draft& d) {
                                                                   d.config.recipe.pin.offload = OffloadMode::kAll;
                                                                 }}})});
  add_rows(rows, {"training.seed", "debug.seed"},
           becomes<Draft>("seed", in_recipe<Draft>(integer(&Recipe::seed, 0, INT64_MAX))));
  add_rows(rows, {"training.deterministic", "debug.deterministic", "debug.deterministic_warn_only"},
           idle<Draft>("runs are deterministic in any case"));
  add_rows(rows, {"dataset", "dataset_path"},
           idle<Draft>("`--data FILE` names the tokens; `partita data` looks into them"), "training.");
  add_rows(rows,
           {"training.gc_freq", "training.gc_debug", "training.compile", "compile.enable", "compile.components",
            "compile.backend", "experimental.custom_args_module", "experimental.custom_import"},
           idle<Draft>("no Python takes part in a step; the model is compiled in any case"));
  add_rows(rows, {"training.enable_fp8_linear"}, off("model.converters = [\"float8\"] says so now"));
}

void add_parallelism(Rows& rows) {
  const std::string section = "parallelism.";
  rows.push_back({section + "data_parallel_replicate_degree",
                  becomes<Draft>("pin.data, pin.zero_group", degree(&Draft::replicas))});
  rows.push_back(
      {section + "data_parallel_shard_degree", becomes<Draft>("pin.data, pin.zero", degree(&Draft::shards))});
  rows.push_back(
      {section + "fsdp_reshard_after_forward",
       one_of<Draft>({{"default", {kIdle, "weights are gathered again, but under a pipeline, as the plan has it"}},
                      {"always",
                       {kTaken, "pin.reshard_after_forward: true"},
                       [](Draft& d) { d.config.recipe.pin.reshard_after_forward = true; }},
                      {"never", {kTaken, "pin.reshard_after_forward: false"}, [](Draft& d) {
                         d.config.recipe.pin.reshard_after_forward = false;
                       }}})});
  rows.push_back({section + "tensor_parallel_degree", axis_pin<Draft>("tensor")});
  rows.push_back({section + "pipeline_parallel_degree", axis_pin<Draft>("pipeline")});
  rows.push_back({section + "context_parallel_degree", axis_pin<Draft>("context")});
  rows.push_back({section + "expert_parallel_degree", axis_pin<Draft>("expert")});
  rows.push_back(
      {section + "expert_tensor_parallel_degree",
       idle_at<Draft>({"1"}, "experts are whole", "experts are divided as the plan has it; pin their values")});
  auto schedule = [](PipelineSchedule s) { return [s](Draft& d) { d.config.recipe.pin.schedule = s; }; };
  rows.push_back(
      {section + "pipeline_parallel_schedule",
       one_of<Draft>(
           {{"1F1B", {kTaken, "pin.schedule: 1f1b"}, schedule(PipelineSchedule::k1f1b)},
            {"GPipe", {kTaken, "pin.schedule: gpipe"}, schedule(PipelineSchedule::kGpipe)},
            {"Interleaved1F1B", {kTaken, "pin.schedule: interleaved"}, schedule(PipelineSchedule::kInterleaved)},
            {"InterleavedZeroBubble",
             {kTaken, "pin.schedule: zero_bubble"},
             schedule(PipelineSchedule::kZeroBubble)}})});
  rows.push_back({section + "pipeline_parallel_microbatch_size",
                  becomes<Draft>("pin.micro_batch", in_pins<Draft>(integer(&PinRecipe::micro_batch, 1)))});
  add_rows(rows, {"pipeline_parallel_split_points", "module_fqns_per_model_part"},
           refused<Draft>("names of modules are not those of the graph; name the first node of each stage in `pin: "
                          "{cuts: [PATTERN, …]}`"),
           section);
  add_rows(rows,
           {"pipeline_parallel_layers_per_stage", "pipeline_parallel_first_stage_less_layers",
            "pipeline_parallel_last_stage_less_layers", "pipeline_parallel_schedule_csv"},
           idle<Draft>("stages are cut so that they take equally long"), section);
  add_rows(rows,
           {"context_parallel_rotate_method", "enable_async_tensor_parallel", "disable_loss_parallel",
            "enable_compiled_autograd", "expert_parallel_comm_backend"},
           idle<Draft>("what is sent when is planned"), section);
}

absl::StatusOr<KeyOutcome> read_converters(const YamlNode& node, const std::string& path, Draft& d) {
  if (node.kind == YamlNode::Kind::kSequence && node.items.empty()) return KeyOutcome{kIdle, "nothing is converted"};
  if (node.kind == YamlNode::Kind::kSequence && node.items.size() == 1 && node.items[0]->text == "float8") {
    d.config.recipe.precision = Precision::kFp8;
    return KeyOutcome{kTaken, "precision: fp8"};
  }
  return unexpected(node, path, "[] or [\"float8\"] (else the graph is trained as it was exported)");
}

void add_run(Rows& rows) {
  rows.push_back({"metrics.log_freq", run_flag<Draft>("--log-every")});
  rows.push_back({"metrics.enable_tensorboard", becomes<Draft>("--metrics", boolean(&Draft::tensorboard))});
  rows.push_back({"metrics.save_tb_folder", becomes<Draft>("--metrics", text(&Draft::tensorboard_folder))});
  rows.push_back(
      {"metrics.enable_wandb", idle<Draft>("numbers go to `--metrics FILE`; from Python to partita.callbacks.WandB")});
  add_rows(rows, {"disable_color_printing", "save_for_all_ranks", "rank_0_only"},
           idle<Draft>("one rank writes the numbers of all"), "metrics.");
  add_rows(rows, {"checkpoint.enable", "checkpoint.enable_checkpoint"},
           becomes<Draft>("--checkpoint", boolean(&Draft::checkpoints)));
  rows.push_back({"checkpoint.folder", becomes<Draft>("--checkpoint", text(&Draft::folder))});
  rows.push_back({"checkpoint.interval", becomes<Draft>("--every", integer(&Draft::interval, 1))});
  rows.push_back({"checkpoint.keep_latest_k", becomes<Draft>("--keep", integer(&Draft::keep, 0))});
  rows.push_back({"checkpoint.initial_load_path", run_flag<Draft>("--init")});
  rows.push_back(
      {"checkpoint.interval_type", idle_at<Draft>({"steps"}, "steps are counted", "count steps: checkpoint.interval")});
  add_rows(
      rows,
      {"model_weights_only", "last_save_model_weights_only", "last_save_model_only", "last_save_in_hf", "export_dtype"},
      idle<Draft>("`partita checkpoint export` writes weights alone, with --hf a folder for transformers"),
      "checkpoint.");
  add_rows(
      rows,
      {"async_mode", "create_seed_checkpoint", "load_step", "exclude_from_loading", "initial_load_in_hf",
       "initial_load_model_only", "enable_first_step_checkpoint"},
      idle<Draft>("checkpoints are written while training goes on, hold whole tensors, and --resume finds the newest"),
      "checkpoint.");
  rows.push_back(
      {"activation_checkpoint.mode",
       one_of<Draft>(
           {{"none", {kTaken, "recompute: none"}, [](Draft& d) { d.config.recipe.recompute = RecomputeMode::kNone; }},
            {"selective",
             {kTaken, "recompute: selective"},
             [](Draft& d) { d.config.recipe.recompute = RecomputeMode::kSelective; }},
            {"memory_budget", {kIdle, "what is computed again in backward is planned to fit"}},
            {"full", {kTaken, "recompute: full"}, [](Draft& d) {
               d.config.recipe.recompute = RecomputeMode::kFull;
             }}})});
  add_rows(rows,
           {"selective_ac_option", "per_op_sac_force_recompute_mm_shapes_by_fqns", "early_stop", "memory_budget",
            "visualize_memory_budget_pareto", "preserve_rng_state", "determinism_check", "debug"},
           idle<Draft>("what `selective` computes again follows from the graph"), "activation_checkpoint.");
  add_rows(rows,
           {"job.dump_folder", "job.description", "job.config_file", "job.print_args", "job.print_config",
            "job.save_config_file", "job.use_for_integration_test", "job.custom_config_module"},
           idle<Draft>("of torchtitan's own job"));
  add_rows(rows,
           {"profiling.enable_profiling", "profiling.save_traces_folder", "profiling.profile_freq",
            "profiling.enable_memory_snapshot", "profiling.save_memory_snapshot_folder", "profiling.profiler_active",
            "profiling.profiler_warmup"},
           idle<Draft>("`--profile FILE` says where a step's time goes"));
  add_rows(rows,
           {"name", "flavor", "tokenizer_path", "hf_assets_path", "norm_type", "use_flex_attn", "attn_mask_type",
            "print_after_conversion", "tokenizer_name"},
           idle<Draft>("the model is the ONNX file"), "model.");
  rows.push_back({"model.converters", read_converters});
  add_rows(rows,
           {"enable_fsdp_float8_all_gather", "precompute_float8_dynamic_scale_for_fsdp",
            "force_recompute_fp8_weight_in_bwd", "recipe_name", "emulate"},
           idle<Draft>("each block of a product's operands has a scale of its own, of the step"), "float8.");
  rows.push_back({"float8.filter_fqns",
                  idle<Draft>("the last layers stay in bf16 in any case; others by `fp8: {keep: [PATTERN]}`")});
  rows.push_back({"validation.enable", becomes<Draft>("evaluate: say its data", boolean(&Draft::evaluates))});
  rows.push_back({"validation.enabled", becomes<Draft>("evaluate: say its data", boolean(&Draft::evaluates))});
  add_rows(rows, {"dataset", "dataset_path", "local_batch_size", "seq_len", "freq", "steps"},
           idle<Draft>("say `evaluate: {data: …, every: N}`"), "validation.");
  add_rows(rows, {"init_timeout_seconds", "train_timeout_seconds"},
           idle<Draft>("timeouts follow from measured steps; `--timeout collective=SECONDS` says another"), "comm.");
  add_rows(rows, {"comm.trace_buf_size", "comm.save_traces_folder", "comm.save_traces_file_prefix"},
           idle<Draft>("what each rank was doing is kept in any case (`--log-dir`)"));
  add_rows(rows, {"fault_tolerance.enable"}, off("ranks are started again by `--max-restarts N`"));
}

const Rows& torchtitan_rows() {
  static const Rows kRows = [] {
    Rows rows;
    add_training(rows);
    add_parallelism(rows);
    add_run(rows);
    return rows;
  }();
  return kRows;
}

void finish_rule(Draft& d) {
  OptimizerRecipe r = default_optimizer(d.optimizer == "Adam" ? OptimizerKind::kAdam : OptimizerKind::kAdamW);
  r.lr = d.rule.lr;
  r.betas = d.rule.betas;
  r.eps = d.rule.eps;
  r.weight_decay = d.rule.weight_decay;
  Recipe& recipe = d.config.recipe;
  recipe.optimizer = r;
  if (d.max_norm > 0) recipe.clip_grad_norm = d.max_norm;
  ScheduleRecipe& s = recipe.schedule;
  s.warmup = std::min(d.warmup, d.steps);
  s.total = d.steps;
  s.min_lr = d.min_lr_factor * r.lr;
  s.kind = d.decay_type == "cosine" ? ScheduleKind::kCosine : ScheduleKind::kLinear;
  if (!d.decay_ratio) return;
  if (d.decay_type == "cosine")
    return refuse_key(d.config.keys, "lr_scheduler.decay_ratio",
                      "a cosine after a constant rate is not done here; leave it out, or say decay_type = \"linear\"");
  s.kind = ScheduleKind::kWsd;
  s.decay =
      std::min(static_cast<int64_t>(std::llround(static_cast<double>(d.steps) * *d.decay_ratio)), d.steps - s.warmup);
}

void finish_layout(Draft& d) {
  PinRecipe& pin = d.config.recipe.pin;
  const int64_t replicas = std::max<int64_t>(d.replicas, 1);
  pin.zero = d.shards == 1 ? 0 : 3;
  if (replicas > 1 && d.shards > 1) pin.zero_group = d.shards;
  if (replicas > 1 && d.shards == -1)
    refuse_key(d.config.keys, "parallelism.data_parallel_shard_degree",
               "expected a number of ranks where data_parallel_replicate_degree is above 1, found -1");
  if (d.shards > 0 && d.replicas > 0) pin.axes["data"] = replicas * d.shards;
  for (const char* axis : {"tensor", "pipeline", "context", "expert"}) pin.axes.try_emplace(axis, 1);
  BatchRecipe& batch = d.config.recipe.batch;
  if (d.global_batch > 0) batch.global = d.global_batch;
  if (d.global_batch <= 0) batch.accumulation = 1;
}

void finish_run(Draft& d) {
  std::vector<std::string>& flags = d.config.flags;
  flags.insert(flags.end(), {"--steps", cat(d.steps)});
  if (d.tensorboard) flags.insert(flags.end(), {"--metrics", cat(d.tensorboard_folder, "/")});
  if (d.checkpoints)
    flags.insert(flags.end(), {"--checkpoint", d.folder, "--every", cat(d.interval), "--keep", cat(d.keep)});
}

void note_defaults(Draft& d) {
  std::vector<ImportedKey>& keys = d.config.keys;
  note_default(keys, "optimizer.lr", "8e-4", "optimizer.lr");
  note_default(keys, "optimizer.beta2", "0.95", "optimizer.betas");
  note_default(keys, "optimizer.weight_decay", "0.1", "optimizer.weight_decay");
  note_default(keys, "lr_scheduler.warmup_steps", "200", "schedule.warmup");
  note_default(keys, "lr_scheduler.decay_type", "linear", "schedule.kind");
  note_default(keys, "training.steps", "10000", "--steps");
  note_default(keys, "training.max_norm", "1.0", "clip_grad_norm");
  note_default(keys, "training.mixed_precision_param", "bfloat16", "precision: bf16");
  note_default(keys, "parallelism.data_parallel_shard_degree", "-1", "pin.zero: 3");
}

}  // namespace

ImportedConfig import_torchtitan_config(const YamlNode& root) {
  Draft d;
  d.config.program = "torchtitan";
  d.config.recipe.precision = Precision::kBf16;
  import_keys(root, "", torchtitan_rows(), d, d.config.keys);
  finish_rule(d);
  finish_layout(d);
  finish_run(d);
  note_defaults(d);
  return std::move(d.config);
}

}  // namespace partita
