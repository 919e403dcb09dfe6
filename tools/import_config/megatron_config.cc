#include "tools/import_config/megatron_config.h"

#include <cmath>

#include "base/cat.h"
#include "base/quote.h"

namespace partita {
namespace {

// With Megatron's defaults.
struct Draft {
  ImportedConfig config;
  OptimizerRule rule = {.lr = 0, .betas = {0.9, 0.999}, .eps = 1e-8, .momentum = 0.9, .weight_decay = 0.01};
  std::string optimizer = "adam", decay_style = "linear";
  std::optional<int64_t> iterations, samples, decay_iterations, decay_samples, warmup, warmup_samples;
  std::optional<double> warmup_fraction;
  double min_lr = 0, first_lr = 0, clip = 1, on_host = 1;  // on_host: share of the optimizer's states
  std::optional<int64_t> ranks_per_node, virtual_stages, layers_per_virtual_stage, layers;
  std::optional<RecomputeMode> granularity;
  int64_t offloaded_layers = 0;
  std::string save;
  std::optional<int64_t> save_interval;
};
using Rows = KeyRows<Draft>;
constexpr auto kTaken = KeyFate::kTaken, kIdle = KeyFate::kIdle;
constexpr auto kFull = RecomputeMode::kFull, kSelective = RecomputeMode::kSelective;

FieldParser<Draft> in_scale(FieldParser<LossScaleRecipe> parse) {
  return [parse](const YamlNode& node, const std::string& path, Draft& out) {
    return parse(node, path, out.config.recipe.loss_scale);
  };
}
// A flag without a value.
KeyReader<Draft> sets(std::string target, std::function<void(Draft&)> apply) {
  return one_of<Draft>({{"true", {kTaken, target}, apply}});
}

void add_update(Rows& rows) {
  rows.push_back(
      {"optimizer",
       one_of<Draft>({{"adam", {kTaken, "optimizer.kind: adamw"}, [](Draft& d) { d.optimizer = "adam"; }},
                      {"sgd", {kTaken, "optimizer.kind: momentum"}, [](Draft& d) { d.optimizer = "sgd"; }}})});
  rows.push_back({"lr", becomes<Draft>("optimizer.lr", within(&Draft::rule, number(&OptimizerRule::lr, kPositive)))});
  rows.push_back({"min-lr", becomes<Draft>("schedule.min_lr", number(&Draft::min_lr, kNonNegative))});
  rows.push_back(
      {"weight-decay", becomes<Draft>("optimizer.weight_decay",
                                      within(&Draft::rule, number(&OptimizerRule::weight_decay, kNonNegative)))});
  rows.push_back({"adam-beta1", becomes<Draft>("optimizer.betas", beta<Draft>(0))});
  rows.push_back({"adam-beta2", becomes<Draft>("optimizer.betas", beta<Draft>(1))});
  rows.push_back(
      {"adam-eps", becomes<Draft>("optimizer.eps", within(&Draft::rule, number(&OptimizerRule::eps, kPositive)))});
  rows.push_back(
      {"sgd-momentum",
       becomes<Draft>("optimizer.momentum", within(&Draft::rule, number(&OptimizerRule::momentum, kNonNegative)))});
  rows.push_back({"clip-grad", becomes<Draft>("clip_grad_norm", number(&Draft::clip, kNonNegative))});
  rows.push_back(
      {"lr-decay-style",
       one_of<Draft>({{"constant", {kTaken, "schedule.kind: constant"}, [](Draft& d) { d.decay_style = "constant"; }},
                      {"linear", {kTaken, "schedule.kind: linear"}, [](Draft& d) { d.decay_style = "linear"; }},
                      {"cosine", {kTaken, "schedule.kind: cosine"}, [](Draft& d) { d.decay_style = "cosine"; }},
                      {"inverse-square-root",
                       {kTaken, "schedule.kind: inverse_sqrt"},
                       [](Draft& d) { d.decay_style = "inverse_sqrt"; }}},
                     "say `schedule` yourself")});
  rows.push_back({"lr-warmup-iters", becomes<Draft>("schedule.warmup", integer(&Draft::warmup, 0))});
  rows.push_back({"lr-warmup-fraction", becomes<Draft>("schedule.warmup", number(&Draft::warmup_fraction, kFraction))});
  rows.push_back({"lr-warmup-samples", becomes<Draft>("schedule.warmup", integer(&Draft::warmup_samples, 0))});
  rows.push_back({"lr-warmup-init", becomes<Draft>("schedule.warmup_start", number(&Draft::first_lr, kNonNegative))});
  rows.push_back({"lr-decay-iters", becomes<Draft>("schedule.total", integer(&Draft::decay_iterations, 1))});
  rows.push_back({"lr-decay-samples", becomes<Draft>("schedule.total", integer(&Draft::decay_samples, 1))});
  rows.push_back({"train-iters", becomes<Draft>("--steps", integer(&Draft::iterations, 1))});
  rows.push_back({"train-samples", becomes<Draft>("--steps", integer(&Draft::samples, 1))});
  rows.push_back({"micro-batch-size", becomes<Draft>("batch.micro", in_batch<Draft>(&BatchRecipe::micro))});
  rows.push_back({"global-batch-size", becomes<Draft>("batch.global", in_batch<Draft>(&BatchRecipe::global))});
  rows.push_back(
      {"rampup-batch-size", refused<Draft>("the batch does not grow while a run goes on; leave it out, or run the "
                                           "first steps with a recipe of a smaller batch and go on with --resume")});
  add_rows(rows, {"start-weight-decay", "end-weight-decay", "weight-decay-incr-style"},
           refused<Draft>("weight decay is one number: --weight-decay"));
  rows.push_back(
      {"decoupled-lr", refused<Draft>("say it as a group: `optimizer: {groups: [{match: [PATTERN], lr: N}]}`")});
  rows.push_back({"seed", becomes<Draft>("seed", in_recipe<Draft>(integer(&Recipe::seed, 0, INT64_MAX)))});
  rows.push_back({"bf16", sets("precision: bf16", [](Draft& d) { d.config.recipe.precision = Precision::kBf16; })});
  rows.push_back({"fp16", sets("precision: fp16", [](Draft& d) { d.config.recipe.precision = Precision::kFp16; })});
  rows.push_back({"loss-scale", becomes<Draft>("loss_scale", in_scale(number(&LossScaleRecipe::fixed, kPositive)))});
  rows.push_back({"initial-loss-scale",
                  becomes<Draft>("loss_scale.initial", in_scale(number(&LossScaleRecipe::initial, kPositive)))});
  rows.push_back({"min-loss-scale",
                  becomes<Draft>("loss_scale.minimum", in_scale(number(&LossScaleRecipe::minimum, kNonNegative)))});
  rows.push_back(
      {"loss-scale-window", becomes<Draft>("loss_scale.window", in_scale(integer(&LossScaleRecipe::window, 1)))});
  rows.push_back(
      {"hysteresis", becomes<Draft>("loss_scale.hysteresis", in_scale(integer(&LossScaleRecipe::hysteresis, 1)))});
  auto gradients = [](Fp8Format format) {
    return [format](Draft& d) { d.config.recipe.precision = Precision::kFp8, d.config.recipe.fp8.gradients = format; };
  };
  rows.push_back({"fp8-format",
                  one_of<Draft>({{"e4m3", {kTaken, "precision: fp8"}, gradients(Fp8Format::kE4M3)},
                                 {"hybrid", {kTaken, "precision: fp8, fp8.gradients"}, gradients(Fp8Format::kE5M2)}})});
  rows.push_back(
      {"fp8-recipe",
       one_of<Draft>({{"blockwise", {kTaken, "fp8.block: 128"}},
                      {"mxfp8", {kTaken, "fp8.block: 32"}, [](Draft& d) { d.config.recipe.fp8.block = 32; }}},
                     "each block has a scale of its own here, a tensor has none")});
  add_rows(rows, {"fp8-amax-history-len", "fp8-amax-compute-algo", "fp8-margin"},
           idle<Draft>("scales are those of the step's own numbers"));
  add_rows(rows, {"fp8-param-gather"}, idle<Draft>("weights are gathered in bf16, and rounded where they are used"));
  add_rows(rows, {"fp4-format"}, refused<Draft>("4-bit floats are not computed in here"));
  add_rows(rows,
           {"accumulate-allreduce-grads-in-fp32", "attention-softmax-in-fp32", "no-query-key-layer-scaling",
            "apply-query-key-layer-scaling", "fp32-residual-connection", "grad-reduce-in-bf16-off"},
           idle<Draft>("sums, norms and softmax are computed in fp32 where precision has 16 bits"));
  rows.push_back(
      {"grad-reduce-in-bf16", sets("compress: bf16", [](Draft& d) { d.config.recipe.compress = Compression::kBf16; })});
}

void add_layout(Rows& rows) {
  rows.push_back({"tensor-model-parallel-size", axis_pin<Draft>("tensor")});
  rows.push_back({"pipeline-model-parallel-size", axis_pin<Draft>("pipeline")});
  rows.push_back({"context-parallel-size", axis_pin<Draft>("context")});
  rows.push_back({"expert-model-parallel-size", axis_pin<Draft>("expert")});
  rows.push_back(
      {"expert-tensor-parallel-size",
       idle_at<Draft>({"1"}, "experts are whole", "experts are divided as the plan has it; pin their values")});
  rows.push_back({"sequence-parallel",
                  sets("pin.sequence_parallel: true", [](Draft& d) { d.config.recipe.pin.sequence_parallel = true; })});
  rows.push_back({"use-distributed-optimizer", sets("pin.zero: 1", [](Draft& d) {
                    d.config.recipe.pin.zero = std::max(d.config.recipe.pin.zero.value_or(0), 1);
                  })});
  add_rows(rows, {"use-torch-fsdp2", "use-custom-fsdp", "use-megatron-fsdp"},
           sets("pin.zero: 3", [](Draft& d) { d.config.recipe.pin.zero = 3; }));
  rows.push_back(
      {"data-parallel-sharding-strategy",
       one_of<Draft>(
           {{"no_shard", {kTaken, "pin.zero: 0"}, [](Draft& d) { d.config.recipe.pin.zero = 0; }},
            {"optim", {kTaken, "pin.zero: 1"}, [](Draft& d) { d.config.recipe.pin.zero = 1; }},
            {"optim_grads", {kTaken, "pin.zero: 2"}, [](Draft& d) { d.config.recipe.pin.zero = 2; }},
            {"optim_grads_params", {kTaken, "pin.zero: 3"}, [](Draft& d) { d.config.recipe.pin.zero = 3; }}})});
  rows.push_back({"num-layers-per-virtual-pipeline-stage",
                  becomes<Draft>("pin.interleave", integer(&Draft::layers_per_virtual_stage, 1))});
  rows.push_back(
      {"num-virtual-stages-per-pipeline-rank", becomes<Draft>("pin.interleave", integer(&Draft::virtual_stages, 1))});
  add_rows(rows, {"optimizer-cpu-offload", "use-precision-aware-optimizer-offload"},
           sets("pin.offload: optimizer", [](Draft& d) { d.config.recipe.pin.offload = OffloadMode::kOptimizer; }));
  rows.push_back(
      {"optimizer-offload-fraction", becomes<Draft>("pin.offload_fraction", number(&Draft::on_host, kShare))});
  rows.push_back({"recompute-activations", sets("recompute: selective", [](Draft& d) { d.granularity = kSelective; })});
  rows.push_back(
      {"recompute-granularity",
       one_of<Draft>({{"full", {kTaken, "recompute: full"}, [](Draft& d) { d.granularity = kFull; }},
                      {"selective", {kTaken, "recompute: selective"}, [](Draft& d) { d.granularity = kSelective; }}})});
  rows.push_back({"cpu-offloading-num-layers",
                  becomes<Draft>("pin.recompute: {offload: …}", integer(&Draft::offloaded_layers, 0, 65536))});
  add_rows(rows, {"cpu-offloading", "cpu-offloading-double-buffering"},
           idle<Draft>("of how many layers says --cpu-offloading-num-layers; two are on their way at a time"));
  add_rows(rows, {"recompute-method", "recompute-num-layers", "recompute-modules", "distribute-saved-activations"},
           idle<Draft>("`recompute` says full or selective; which blocks is planned"));
  add_rows(rows,
           {"overlap-grad-reduce",
            "overlap-param-gather",
            "overlap-param-gather-with-optimizer-step",
            "no-overlap-p2p-communication",
            "overlap-p2p-communication",
            "tp-comm-overlap",
            "delay-grad-reduce",
            "ddp-bucket-size",
            "ddp-average-in-collective",
            "ddp-num-buckets",
            "no-async-tensor-model-parallel-allreduce",
            "align-grad-reduce",
            "defer-embedding-wgrad-compute",
            "microbatch-group-size-per-virtual-pipeline-stage",
            "no-gradient-accumulation-fusion",
            "gradient-accumulation-fusion",
            "use-nccl-ub",
            "nccl-communicator-config-path",
            "use-tp-pp-dp-mapping",
            "context-parallel-type",
            "cp-comm-type"},
           idle<Draft>("what is sent when, in what pieces, and which ranks are neighbours, is planned"));
  add_rows(rows,
           {"decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers",
            "account-for-embedding-in-pipeline-split", "account-for-loss-in-pipeline-split",
            "standalone-embedding-stage", "pipeline-model-parallel-layout"},
           idle<Draft>("stages are cut so that they take equally long; `pin: {cuts: […]}` says where"));
  rows.push_back({"pipeline-model-parallel-split-rank",
                  refused<Draft>("encoder and decoder have no ranks of their own here; `pin: {cuts: [PATTERN, …]}` "
                                 "names the first node of each stage")});
}

void add_run(Rows& rows) {
  add_rows(rows, {"nproc-per-node", "nproc-per-node-gpu"},
           becomes<Draft>("--ranks, with nnodes", integer(&Draft::ranks_per_node, 1)));
  rows.push_back({"nnodes", becomes<Draft>("--nodes of partita launch",
                                           [](const YamlNode& node, const std::string& path, Draft& out) {
                                             return integer(&ImportedConfig::nodes, 1)(node, path, out.config);
                                           })});
  add_rows(rows,
           {"node-rank", "master-addr", "master-port", "rdzv-id", "rdzv-backend", "rdzv-endpoint", "max-restarts",
            "local-rank", "distributed-backend", "distributed-timeout-minutes", "tee", "log-dir"},
           idle<Draft>("of torchrun and its group: `partita launch --torchrun --node-rank N --master HOST --port N`"));
  rows.push_back({"log-interval", run_flag<Draft>("--log-every")});
  rows.push_back({"save", becomes<Draft>("--checkpoint", text(&Draft::save))});
  rows.push_back({"save-interval", becomes<Draft>("--every", integer(&Draft::save_interval, 1))});
  rows.push_back(
      {"load", idle<Draft>("--resume goes on from the newest checkpoint; weights of other programs: --init FOLDER")});
  rows.push_back({"finetune", idle<Draft>("--init FOLDER begins at step 0")});
  add_rows(rows, {"tensorboard-dir"}, run_flag<Draft>("--metrics"));
  add_rows(rows, {"wandb-project", "wandb-exp-name", "wandb-save-dir", "wandb-entity"},
           idle<Draft>("numbers go to `--metrics FILE`; from Python to partita.callbacks.WandB"));
  add_rows(rows,
           {"tensorboard-queue-size", "tensorboard-log-interval", "log-timers-to-tensorboard",
            "log-validation-ppl-to-tensorboard", "log-memory-to-tensorboard", "log-throughput", "log-params-norm",
            "log-num-zeros-in-grad", "log-progress", "log-straggler", "timing-log-level", "timing-log-option",
            "log-loss-scale-to-tensorboard", "log-world-size-to-tensorboard", "log-learning-rate-to-tensorboard",
            "log-batch-size-to-tensorboard", "logging-level"},
           idle<Draft>("`--metrics` has loss, rate, norm, memory and throughput of each step"));
  add_rows(rows,
           {"profile", "profile-step-start", "profile-step-end", "profile-ranks", "use-pytorch-profiler",
            "record-memory-history"},
           idle<Draft>("`--profile FILE` says where a step's time goes"));
  add_rows(rows, {"data-path", "train-data-path", "valid-data-path", "test-data-path"},
           idle<Draft>("`--data PATH` names the .bin or .idx of Megatron's; several with weights: `data: {sources: "
                       "[{path, weight}]}`"));
  add_rows(rows, {"split", "eval-interval", "eval-iters", "full-validation"},
           idle<Draft>("`evaluate: {data: {path: FILE}, every: N, batches: N}` evaluates on a file of its own"));
  add_rows(rows,
           {"vocab-file",
            "merge-file",
            "tokenizer-type",
            "tokenizer-model",
            "make-vocab-size-divisible-by",
            "vocab-size",
            "data-cache-path",
            "no-create-attention-mask-in-dataloader",
            "no-mmap-bin-files",
            "num-workers",
            "dataloader-type",
            "reset-position-ids",
            "reset-attention-mask",
            "eod-mask-loss",
            "data-impl",
            "num-dataset-builder-threads",
            "mock-data",
            "legacy-tokenizer",
            "tiktoken-pattern",
            "padded-vocab-size"},
           idle<Draft>("tokens are read as they are; `data` says how documents are joined"));
  add_rows(rows,
           {"no-save-optim",
            "no-save-rng",
            "no-load-optim",
            "no-load-rng",
            "ckpt-format",
            "use-dist-ckpt",
            "dist-ckpt-format",
            "auto-detect-ckpt-format",
            "async-save",
            "use-checkpoint-args",
            "exit-on-missing-checkpoint",
            "override-opt-param-scheduler",
            "override-opt_param-scheduler",
            "use-checkpoint-opt-param-scheduler",
            "non-persistent-save-interval",
            "ckpt-fully-parallel-save",
            "ckpt-fully-parallel-load",
            "ckpt-assume-constant-structure",
            "dist-ckpt-strictness",
            "pretrained-checkpoint",
            "no-initialization",
            "use-cpu-initialization",
            "no-ckpt-fully-parallel-save"},
           idle<Draft>("checkpoints hold all states whole, and load under any layout; the recipe at hand holds"));
  add_rows(
      rows,
      {"exit-interval", "exit-duration-in-mins", "exit-signal-handler", "manual-gc", "manual-gc-interval",
       "no-check-for-nan-in-loss-and-grad", "check-for-nan-in-loss-and-grad", "check-for-spiky-loss",
       "empty-unused-memory-level", "check-weight-hash-across-dp-replicas-interval", "skip-train", "jit-fusion",
       "enable-experimental"},
      idle<Draft>("of Megatron's loop; here: SIGTERM saves and ends, `run: {on_nonfinite, loss_spike}`, `--audit N`"));
}

// What the ONNX file has, and what chooses among Megatron's own modules.
void add_model(Rows& rows) {
  rows.push_back(
      {"num-layers", becomes<Draft>("the model's own; pin.interleave counts by it", integer(&Draft::layers, 1))});
  add_rows(rows,
           {"hidden-size",
            "ffn-hidden-size",
            "num-attention-heads",
            "kv-channels",
            "group-query-attention",
            "num-query-groups",
            "seq-length",
            "encoder-seq-length",
            "decoder-seq-length",
            "max-position-embeddings",
            "position-embedding-type",
            "use-rotary-position-embeddings",
            "rotary-base",
            "rotary-percent",
            "rotary-seq-len-interpolation-factor",
            "use-rope-scaling",
            "rope-scaling-factor",
            "no-position-embedding",
            "no-rope-fusion",
            "normalization",
            "norm-epsilon",
            "layernorm-epsilon",
            "apply-layernorm-1p",
            "swiglu",
            "squared-relu",
            "openai-gelu",
            "disable-bias-linear",
            "add-qkv-bias",
            "qk-layernorm",
            "untie-embeddings-and-output-weights",
            "attention-dropout",
            "hidden-dropout",
            "init-method-std",
            "init-method-xavier-uniform",
            "num-experts",
            "moe-router-topk",
            "moe-ffn-hidden-size",
            "moe-shared-expert-intermediate-size",
            "moe-layer-freq",
            "moe-router-load-balancing-type",
            "moe-aux-loss-coeff",
            "moe-z-loss-coeff",
            "multi-latent-attention",
            "q-lora-rank",
            "kv-lora-rank",
            "qk-head-dim",
            "qk-pos-emb-head-dim",
            "v-head-dim",
            "export-force-local-attention",
            "spec"},
           idle<Draft>("the model is the ONNX file"));
  add_rows(rows, {"moe-expert-capacity-factor", "moe-token-drop-policy", "moe-pad-expert-input-to-capacity"},
           idle<Draft>("`semantics: {moe: {capacity_factor: N}}` bounds the tokens of an expert"));
  add_rows(rows,
           {"use-mcore-models",
            "use-legacy-models",
            "transformer-impl",
            "attention-backend",
            "use-flash-attn",
            "moe-grouped-gemm",
            "moe-token-dispatcher-type",
            "moe-permute-fusion",
            "moe-enable-deepep",
            "moe-shared-expert-overlap",
            "no-masked-softmax-fusion",
            "no-bias-gelu-fusion",
            "no-bias-swiglu-fusion",
            "no-bias-dropout-fusion",
            "no-persist-layer-norm",
            "masked-softmax-fusion",
            "cross-entropy-loss-fusion",
            "cross-entropy-fusion-impl",
            "enable-cuda-graph",
            "cuda-graph-scope",
            "te-rng-tracker",
            "tp-comm-overlap-cfg",
            "use-fused-rmsnorm",
            "use-precision-aware-optimizer",
            "main-grads-dtype",
            "main-params-dtype",
            "exp-avg-dtype",
            "exp-avg-sq-dtype"},
           idle<Draft>("kernels are generated for the graph; `kernels: {attention: …}` chooses that of attention"));
}

const Rows& megatron_rows() {
  static const Rows kRows = [] {
    Rows rows;
    add_update(rows);
    add_layout(rows);
    add_run(rows);
    add_model(rows);
    return rows;
  }();
  return kRows;
}

// Steps of so many samples; refuses the key where there is no batch to count by.
std::optional<int64_t> steps_of(std::optional<int64_t> steps, std::optional<int64_t> samples, std::string_view key,
                                Draft& d) {
  if (steps || !samples) return steps;
  if (d.config.recipe.batch.global) return *samples / *d.config.recipe.batch.global;
  refuse_key(d.config.keys, key, "expected --global-batch-size beside it, to count steps by");
  return std::nullopt;
}

void finish_update(Draft& d) {
  std::vector<ImportedKey>& keys = d.config.keys;
  Recipe& recipe = d.config.recipe;
  OptimizerRecipe r = default_optimizer(d.optimizer == "sgd" ? OptimizerKind::kMomentum : OptimizerKind::kAdamW);
  if (!has_key(keys, "lr")) refuse_key(keys, "lr", "expected a rate, found nothing");
  r.lr = d.rule.lr;
  if (d.optimizer == "sgd")
    r.momentum = d.rule.momentum;
  else
    r.betas = d.rule.betas, r.eps = d.rule.eps;
  r.weight_decay = d.rule.weight_decay;
  r.no_decay = {"*.bias", "*norm*"};
  recipe.optimizer = r;
  keys.push_back(
      {{KeyFate::kDefault, "optimizer.no_decay: ['*.bias', '*norm*']; see that it names your biases and norms"},
       "(no decay of biases and vectors)",
       "",
       0,
       0});
  if (d.clip > 0) recipe.clip_grad_norm = d.clip;
  if (recipe.precision == Precision::kFp16 && !has_key(keys, "initial-loss-scale")) {
    recipe.loss_scale.initial = 0x1p32;
    note_default(keys, "initial-loss-scale", "2^32", "loss_scale.initial");
  }
  const std::optional<int64_t> steps = steps_of(d.iterations, d.samples, "train-samples", d),
                               decay = steps_of(d.decay_iterations, d.decay_samples, "lr-decay-samples", d),
                               warmup = steps_of(d.warmup, d.warmup_samples, "lr-warmup-samples", d);
  if (steps) d.config.flags.insert(d.config.flags.end(), {"--steps", cat(*steps)});
  ScheduleRecipe& s = recipe.schedule;
  s.total = decay ? *decay : steps.value_or(0);
  s.warmup =
      d.warmup_fraction ? static_cast<int64_t>(*d.warmup_fraction * static_cast<double>(s.total)) : warmup.value_or(0);
  if (s.warmup > 0) s.warmup_start = r.lr > 0 ? d.first_lr / r.lr : 0;
  if (d.first_lr > 0 && d.first_lr >= r.lr) refuse_key(keys, "lr-warmup-init", "expected less than lr");
  s.min_lr = d.min_lr;
  s.kind = d.decay_style == "constant" ? ScheduleKind::kConstant
           : d.decay_style == "linear" ? ScheduleKind::kLinear
           : d.decay_style == "cosine" ? ScheduleKind::kCosine
                                       : ScheduleKind::kInverseSqrt;
  const bool ends = s.kind == ScheduleKind::kLinear || s.kind == ScheduleKind::kCosine;
  if (ends && s.total == 0) refuse_key(keys, "train-iters", "expected steps, by which the rate falls; found none");
  if (!ends) s.total = 0, s.min_lr = 0;
  if (!ends && d.min_lr > 0)
    refuse_key(keys, "min-lr", cat("a rate that is ", d.decay_style, " has no lowest one here; leave it out"));
}

void finish_layout(Draft& d) {
  PinRecipe& pin = d.config.recipe.pin;
  for (const char* axis : {"tensor", "pipeline", "context", "expert"}) pin.axes.try_emplace(axis, 1);
  if (!pin.zero) pin.zero = 0;
  if (pin.offload && d.on_host < 1) pin.offload_fraction = d.on_host;
  d.config.recipe.recompute = d.granularity.value_or(RecomputeMode::kNone);
  pin.recompute_blocks.assign(static_cast<size_t>(d.offloaded_layers), RecomputeMode::kOffload);
  if (d.offloaded_layers > 0 && d.granularity)
    refuse_key(d.config.keys, "cpu-offloading-num-layers",
               "layers wait on the host, or are computed again: leave out one");
  const int64_t stages = pin.axes["pipeline"];
  if (stages > 1) pin.schedule = PipelineSchedule::k1f1b;
  if (d.layers_per_virtual_stage && d.layers) {
    const int64_t per = *d.layers_per_virtual_stage * stages;
    if (*d.layers % per == 0)
      d.virtual_stages = *d.layers / per;
    else
      refuse_key(d.config.keys, "num-layers-per-virtual-pipeline-stage",
                 cat("expected ", stages, " stages of it to divide --num-layers ", *d.layers, ", found ",
                     *d.layers_per_virtual_stage));
  } else if (d.layers_per_virtual_stage) {
    refuse_key(d.config.keys, "num-layers-per-virtual-pipeline-stage",
               "expected --num-layers beside it, to count chunks by");
  }
  if (d.virtual_stages && *d.virtual_stages > 1) {
    pin.interleave = d.virtual_stages;
    pin.schedule = PipelineSchedule::kInterleaved;
  }
  if (d.ranks_per_node) d.config.ranks = *d.ranks_per_node * d.config.nodes.value_or(1);
  if (!d.save.empty()) d.config.flags.insert(d.config.flags.end(), {"--checkpoint", d.save});
  if (!d.save.empty() && d.save_interval)
    d.config.flags.insert(d.config.flags.end(), {"--every", cat(*d.save_interval)});
}

void note_defaults(Draft& d) {
  std::vector<ImportedKey>& keys = d.config.keys;
  note_default(keys, "optimizer", "adam", "optimizer.kind: adamw");
  note_default(keys, "weight-decay", "0.01", "optimizer.weight_decay");
  note_default(keys, "clip-grad", "1.0", "clip_grad_norm");
  note_default(keys, "lr-decay-style", "linear", "schedule.kind");
  note_default(keys, "tensor-model-parallel-size", "1", "pin.tensor");
  note_default(keys, "pipeline-model-parallel-size", "1", "pin.pipeline");
  note_default(keys, "context-parallel-size", "1", "pin.context");
  if (!d.granularity) note_default(keys, "recompute-granularity", "none", "recompute: none");
  if (d.config.recipe.pin.zero == 0) note_default(keys, "use-distributed-optimizer", "false", "pin.zero: 0");
}

}  // namespace

ImportedConfig import_megatron_arguments(const YamlNode& root) {
  Draft d;
  d.config.program = "Megatron-LM";
  import_keys(root, "", megatron_rows(), d, d.config.keys);
  finish_update(d);
  finish_layout(d);
  note_defaults(d);
  return std::move(d.config);
}

}  // namespace partita
