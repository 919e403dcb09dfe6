// What the user asks of a training run: train.yaml (docs/train_yaml.md) as plain data. Filled by
// ir/recipe/read_recipe.h; passes and the partitioner read it. An unset optional means "not said": the reader of that
// field chooses.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/enum_names.h"
#include "base/kinds.h"
#include "base/metric_output.h"
#include "ir/recipe/bucket_sizes.h"
#include "ir/recipe/glob.h"

namespace partita {

enum class LossKind { kOutput, kCrossEntropy, kMse, kBceWithLogits, kL1, kKl, kContrastive };
template <>
inline constexpr auto kEnumNames<LossKind> = name_table("output", "cross_entropy", "mse", "bce_with_logits", "l1", "kl",
                                                        "contrastive");

enum class Reduction { kMean, kSum };
template <>
inline constexpr auto kEnumNames<Reduction> = name_table("mean", "sum");

enum class MetricKind { kOutput, kAccuracy };
template <>
inline constexpr auto kEnumNames<MetricKind> = name_table("output", "accuracy");

enum class OptimizerKind {
  kSgd,
  kMomentum,
  kAdagrad,
  kAdam,
  kAdamW,
  kLamb,
  kLion,
  kRmsprop,
  kAdafactor,
  kMuon,
  kAdamW8bit,
};
template <>
inline constexpr auto kEnumNames<OptimizerKind> = name_table("sgd", "momentum", "adagrad", "adam", "adamw", "lamb",
                                                             "lion", "rmsprop", "adafactor", "muon", "adamw_8bit");

// What muon's rate is multiplied by for a matrix of m rows and n columns: sqrt(max(1, m/n)), 0.2 sqrt(max(m, n)),
// sqrt(m/n).
enum class AdjustLr { kOriginal, kMatchRmsAdamW, kSpectralUnclamped };
template <>
inline constexpr auto kEnumNames<AdjustLr> = name_table("original", "match_rms_adamw", "spectral_unclamped");

enum class ScheduleKind { kConstant, kLinear, kCosine, kWsd, kOneCycle, kPolynomial, kInverseSqrt, kStep, kPiecewise };
template <>
inline constexpr auto kEnumNames<ScheduleKind> = name_table("constant", "linear", "cosine", "wsd", "one_cycle",
                                                            "polynomial", "inverse_sqrt", "step", "piecewise");

enum class AnnealStrategy { kCos, kLinear };
template <>
inline constexpr auto kEnumNames<AnnealStrategy> = name_table("cos", "linear");

enum class Precision { kFp32, kTf32, kBf16, kFp16, kFp8 };
template <>
inline constexpr auto kEnumNames<Precision> = name_table("fp32", "tf32", "bf16", "fp16", "fp8");

// What becomes of what a block's forward part leaves for its backward part: some of it is computed again
// (passes/training/recompute.h); with the last two, what is not computed again waits in the host's memory
// (codegen/prepare/host_transfers.h).
enum class RecomputeMode {
  kAuto,
  kNone,
  kSelective,
  kAttention,
  kMlp,
  kAllButAttention,
  kFull,
  kOffload,
  kFullOffload
};
template <>
inline constexpr auto kEnumNames<RecomputeMode> = name_table("auto", "none", "selective", "attention", "mlp",
                                                             "all_but_attention", "full", "offload", "full_offload");
inline constexpr size_t kRecomputeModes = static_cast<size_t>(RecomputeMode::kFullOffload) + 1;
constexpr bool waits_on_host(RecomputeMode mode) { return mode >= RecomputeMode::kOffload; }
// The mode that computes as much again on the device alone.
constexpr RecomputeMode on_device(RecomputeMode mode) {
  return mode == RecomputeMode::kOffload       ? RecomputeMode::kNone
         : mode == RecomputeMode::kFullOffload ? RecomputeMode::kFull
                                               : mode;
}

// Attention as one kernel, of cuDNN's, of our own or of either; or as products and softmax.
enum class AttentionKernel { kAuto, kCudnn, kOwn, kMath };
template <>
inline constexpr auto kEnumNames<AttentionKernel> = name_table("auto", "cudnn", "own", "math");

enum class InitKind { kNormal, kUniform, kConstant, kKaiming, kXavier };
template <>
inline constexpr auto kEnumNames<InitKind> = name_table("normal", "uniform", "constant", "kaiming", "xavier");

enum class InitDistribution { kNormal, kUniform };
template <>
inline constexpr auto kEnumNames<InitDistribution> = name_table("normal", "uniform");

enum class FanMode { kFanIn, kFanOut };
template <>
inline constexpr auto kEnumNames<FanMode> = name_table("fan_in", "fan_out");

enum class BatchNormGroup { kGlobal, kReplica };
template <>
inline constexpr auto kEnumNames<BatchNormGroup> = name_table("global", "replica");

enum class Compression { kNone, kBf16, kInt8, kPowerSgd };
template <>
inline constexpr auto kEnumNames<Compression> = name_table("none", "bf16", "int8", "powersgd");

enum class OffloadMode { kNone, kOptimizer, kAll };
template <>
inline constexpr auto kEnumNames<OffloadMode> = name_table("none", "optimizer", "all");

enum class PipelineSchedule { kGpipe, k1f1b, kInterleaved, kZeroBubble, kPipedream };
template <>
inline constexpr auto kEnumNames<PipelineSchedule> = name_table("gpipe", "1f1b", "interleaved", "zero_bubble",
                                                                "pipedream");

// Weighs down what is predicted well: times (1 - p)^gamma, p being the probability of what is the case; of binary
// targets also times alpha where the target is 1, and 1 - alpha where it is 0.
struct FocalRecipe {
  double gamma = 2;
  std::optional<double> alpha;  // kBceWithLogits only
  bool operator==(const FocalRecipe&) const = default;
};

// A loss, or one of several that are added up.
struct LossRecipe {
  LossKind kind = LossKind::kOutput;
  std::string output;             // graph output that is the loss, or the predictions; empty: the graph's only output
  std::string target = "target";  // name of the array with the targets; empty: none (kOutput, kContrastive, maybe kKl)
  int64_t ignore_index = -100;    // kCrossEntropy, and kKl with a target
  Reduction reduction = Reduction::kMean;
  std::string name;  // of several losses; empty: the kind's
  double weight = 1;
  double label_smoothing = 0;         // kCrossEntropy: torch's
  double z_loss = 0;                  // kCrossEntropy: times the square of each row's log-sum-exp, which is added
  std::optional<FocalRecipe> focal;   // kCrossEntropy, kBceWithLogits
  std::optional<double> temperature;  // kKl (unset: 1), kContrastive (unset: 0.07)
  std::string logit_scale;            // kContrastive: the output in place of 1 / temperature
  std::string with;                   // kContrastive: the output with the other embeddings
  std::string teacher;                // kKl: the teacher's ONNX file, relative to the working directory
  std::string teacher_output;         // kKl; empty: called as the model's own
  bool operator==(const LossRecipe&) const = default;
};

// A number that is reported beside the loss, of training and of evaluation.
struct MetricRecipe {
  MetricKind kind = MetricKind::kOutput;
  std::string output;             // of the graph: the number, or what it is made of
  std::string target = "target";  // kAccuracy: as a loss has it
  int64_t ignore_index = -100;    // kAccuracy
  int64_t top = 1;                // kAccuracy: the target is among so many classes of the highest scores
  MetricReduction reduce = MetricReduction::kMean;  // over elements and runs
  bool operator==(const MetricRecipe&) const = default;
};

// Of muon: adamw, for parameters that are no matrices, and for the matrices whose names `match` (globs).
struct AdamWRule {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 1e-2;
  std::vector<std::string> match;
  bool operator==(const AdamWRule&) const = default;
};

// Update rules are torch.optim's. kMomentum is kSgd with momentum 0.9 unless said otherwise; kLamb, kLion and
// kAdamW8bit are in docs/train_yaml.md.
struct OptimizerRule {
  OptimizerKind kind = OptimizerKind::kAdamW;
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};  // adam, adamw, lamb, lion, adamw_8bit
  double eps = 1e-8;                           // all but sgd, momentum, lion
  double momentum = 0;                         // sgd, momentum, rmsprop, muon
  double dampening = 0;                        // sgd, momentum
  bool nesterov = false;                       // sgd, momentum, muon
  double weight_decay = 0;
  double lr_decay = 0;             // adagrad
  double initial_accumulator = 0;  // adagrad
  double alpha = 0.99;             // rmsprop
  bool centered = false;           // rmsprop
  // adafactor: torch.optim.Adafactor's beta2_decay, second eps and d
  double beta2_decay = -0.8, eps2 = 1e-3, clip_threshold = 1;
  // muon: torch.optim.Muon's, and what updates the rest
  std::array<double, 3> ns_coefficients = {3.4445, -4.7750, 2.0315};
  int64_t ns_steps = 5;
  AdjustLr adjust_lr_fn = AdjustLr::kOriginal;
  AdamWRule adamw;
  bool operator==(const OptimizerRule&) const = default;
};

// What the initializers that `match` (globs) have of their own; of the optimizer's kind.
struct ParameterGroup : OptimizerRule {
  std::vector<std::string> match;
  bool operator==(const ParameterGroup&) const = default;
};

struct OptimizerRecipe : OptimizerRule {
  std::vector<std::string> no_decay;   // globs over initializer names that weight_decay leaves alone
  std::vector<ParameterGroup> groups;  // the first that matches wins
  bool operator==(const OptimizerRecipe&) const = default;

  // The first group that matches an initializer's name; nullptr: the optimizer's own rule holds.
  const ParameterGroup* group_of(const std::string& name) const;
  // The rule of an initializer of `rank` dimensions: its group's or the optimizer's own, or that one's adamw.
  OptimizerRule rule_of(const std::string& name, int rank) const;
};

// Steps count from 0; durations are in optimizer steps.
struct ScheduleRecipe {
  ScheduleKind kind = ScheduleKind::kConstant;
  int64_t warmup = 0;
  int64_t total = 0;  // 0: not said (kConstant, kInverseSqrt and kStep need none)
  int64_t decay = 0;  // kWsd: length of the last phase
  double min_lr = 0;
  double power = 1;  // kPolynomial
  // kOneCycle, as torch.optim.lr_scheduler.OneCycleLR has them
  double pct_start = 0.3, div_factor = 25, final_div_factor = 1e4;
  AnnealStrategy anneal_strategy = AnnealStrategy::kCos;
  bool three_phase = false;
  std::optional<int64_t> timescale;  // kInverseSqrt; unset: warmup, or 10000 where there is none
  // kStep: the rate is multiplied by gamma every `step_size` steps after warmup, or at each of the milestones.
  std::optional<int64_t> step_size;
  std::vector<int64_t> milestones;
  double gamma = 0.1;
  // kPiecewise: shares of the rate, on straight lines from one step to the next, the last one from there on. Steps
  // ascend from 0.
  struct Point {
    int64_t step = 0;
    double share = 1;
    bool operator==(const Point&) const = default;
  };
  std::vector<Point> points;
  // Of the rate at step 0, from which the warm-up rises to all of it at step `warmup`; unset: it rises from 1 / warmup,
  // to all of it a step earlier.
  std::optional<double> warmup_start;
  bool operator==(const ScheduleRecipe&) const = default;
};

// An exponential moving average of the trained weights, which evaluation uses: the weights themselves after the first
// step, then decay x average + (1 - decay) x weight after each.
struct EmaRecipe {
  double decay = 0.999;
  bool operator==(const EmaRecipe&) const = default;
};

// Sums in a fixed order, as balanced binary trees: over `samples` parts of a step's samples, and over `tensor` blocks
// of an inner dimension that a tensor axis may divide (1: none may be). Powers of two.
struct ReproducibleRecipe {
  int64_t samples = 1, tensor = 1;
  bool operator==(const ReproducibleRecipe&) const = default;
};

// What fp16's loss is multiplied by (passes/training/loss_scale.h): `fixed`, or `initial` at first, doubled after
// `window` good steps in a row and halved, to no less than `minimum`, at the overflow that is the `hysteresis`-th since
// it last grew, and at each after that.
struct LossScaleRecipe {
  std::optional<double> fixed;
  double initial = 65536;
  int64_t window = 1000;
  int64_t hysteresis = 2;
  double minimum = 1;
  bool operator==(const LossScaleRecipe&) const = default;
};

// Of precision fp8 (passes/forward/choose_fp8.h): elements of a block that has a scale, the format of gradients, and
// globs over the names of weights whose products stay in bf16.
struct Fp8Recipe {
  int64_t block = 128;
  Fp8Format gradients = Fp8Format::kE4M3;
  std::vector<std::string> keep;
  bool operator==(const Fp8Recipe&) const = default;
};

// Samples per optimizer step from a step on.
struct BatchPhase {
  int64_t from = 0, samples = 1;
  bool operator==(const BatchPhase&) const = default;
};

struct BatchRecipe {
  std::optional<int64_t> global;        // samples per optimizer step over all devices; of a ramp, in the end
  std::vector<BatchPhase> ramp;         // from step 0 on, in ascending order; empty: always `global`
  std::optional<int64_t> micro;         // samples per replica and micro-batch; unset: searched
  std::optional<int64_t> accumulation;  // micro-batches per replica and step, where `global` is unset (DeepSpeed)
  bool operator==(const BatchRecipe&) const = default;
};

// A symbolic dimension that has one of several extents in each step: the length of its samples.
struct LengthsRecipe {
  std::string dimension;
  std::vector<int64_t> extents;  // two or more, ascending; empty: there is no such dimension
  bool operator==(const LengthsRecipe&) const = default;
};

// Initial values for the initializers that `match`; the first rule that matches wins.
struct InitRule {
  std::string match;
  InitKind kind = InitKind::kNormal;
  double mean = 0, std = 1;                                    // kNormal
  double low = 0, high = 1;                                    // kUniform
  double value = 0;                                            // kConstant (zeros, ones)
  InitDistribution distribution = InitDistribution::kUniform;  // kKaiming, kXavier
  FanMode fan = FanMode::kFanIn;                               // kKaiming
  double gain = 1;                                             // kKaiming (default sqrt 2), kXavier
  bool operator==(const InitRule&) const = default;
};

// One of several sources of samples; what is unset is as DataRecipe has it.
struct SourceRecipe {
  std::string path;
  std::optional<double> weight;  // unset: the number of its samples
  std::optional<DataKind> kind;
  std::optional<DType> dtype;
  std::optional<DocumentMode> documents;
  std::optional<int64_t> end_of_document;
  bool operator==(const SourceRecipe&) const = default;
};

struct DataRecipe {
  std::optional<DataKind> kind;                // unset: by the file's suffix
  std::string path;                            // as written; relative to the working directory
  std::map<std::string, std::string> columns;  // graph input -> array (npz), file below `path` (raw, npy)
  bool shuffle = false;
  std::optional<int64_t> seed;   // of the shuffle; unset: Recipe::seed
  std::optional<DType> dtype;    // element type of tokens and raw files
  std::optional<int64_t> vocab;  // synthetic integers are drawn from [0, vocab)
  int64_t prefetch = 2;          // batches read ahead
  std::optional<bool> shift;     // labels are the next tokens; unset: unless the graph shifts them itself
  bool check_ids = true;         // ids that are hardly what they are read as are an error
  DocumentMode documents = DocumentMode::kJoin;
  std::optional<int64_t> end_of_document;  // the token that ends one
  int64_t pad_token = 0, ignore_label = -100;
  std::vector<SourceRecipe> sources;  // in place of `path`
  std::string lengths;                // npz, npy: array of the samples' lengths
  ImageSettings images;
  std::optional<int64_t> workers;  // threads that decode pictures
  bool operator==(const DataRecipe&) const = default;
};

struct EvaluateRecipe {
  DataRecipe data;
  int64_t every = 1000;            // optimizer steps between evaluations
  std::optional<int64_t> batches;  // global batches per evaluation; unset: all of the data
  bool operator==(const EvaluateRecipe&) const = default;
};

// Tokens an expert accepts per group: exactly one of `tokens` and `factor` is set (factor f: ceil(f * tokens of the
// group * k / experts)).
struct MoeCapacity {
  std::optional<int64_t> tokens;
  std::optional<double> factor;
  std::optional<int64_t> group;  // samples that share one capacity; unset: what the graph takes at a time
  bool operator==(const MoeCapacity&) const = default;
};

struct SemanticsRecipe {
  BatchNormGroup batch_norm = BatchNormGroup::kGlobal;
  bool batch_norm_training = false;  // nodes that were exported as for inference normalize by the batch, too
  std::optional<MoeCapacity> moe;    // unset: as exported
  bool moe_dropless = false;         // the model must not drop tokens
  bool operator==(const SemanticsRecipe&) const = default;
};

// A loss of more than `factor` times the mean of the `window` losses before it.
struct LossSpikeRecipe {
  static constexpr int64_t kLongestWindow = 100000;  // checkpoints keep them

  double factor = 3;
  int64_t window = 100;
  DivergenceAction action = DivergenceAction::kWarn;  // not kSkip
  bool operator==(const LossSpikeRecipe&) const = default;
};

// Seconds that a phase of the run may take; unset: by its measured steps.
struct TimeoutRecipe {
  std::optional<double> start, data, step, collective, checkpoint, evaluation;
  bool operator==(const TimeoutRecipe&) const = default;
};

// What a run does when something goes wrong, unless its flags say otherwise.
struct RunRecipe {
  DivergenceAction on_nonfinite = DivergenceAction::kStop;  // kSkip: the program is another one
  std::optional<LossSpikeRecipe> loss_spike;
  TimeoutRecipe timeout;
  bool operator==(const RunRecipe&) const = default;

  bool skips() const { return on_nonfinite == DivergenceAction::kSkip; }
};

// The values (initializers, activations) whose name `match`es: factor -> mesh axes that split it, outermost first; no
// axes: not split.
struct ValuePin {
  std::string match;
  std::map<std::string, std::vector<std::string>> factors;
  bool operator==(const ValuePin&) const = default;
};

// Parts of the plan that the user fixed; the rest is searched.
struct PinRecipe {
  static constexpr int64_t kNode = 0;  // a zero_group of "the devices of one node"
  static constexpr int64_t kMostPrefetched = 1 << 16, kMostOverlapped = 16, kMostRowParts = 16;

  std::map<std::string, int64_t> axes;  // data, tensor, pipeline, context, expert -> size
  std::optional<int> zero;              // 0..3
  std::optional<int64_t> zero_group;    // data ranks that share one sharded copy (HSDP), kNode, or unset: all of them
  // Data ranks that sum, scatter and gather among themselves before groups of them do with each other; unset: open.
  std::optional<int64_t> hierarchical_group;
  std::optional<bool> reshard_after_forward;     // zero 3; unset: true
  std::optional<int64_t> prefetch_blocks;        // that gathers run ahead of their use (Layout); unset: open
  std::optional<int64_t> overlap_micro_batches;  // that are computed in turns (Layout); unset: open
  std::optional<int64_t> overlap_products;       // that their rows are cut into (Layout); unset: open
  BucketSizes bucket_bytes;                      // what it leaves open grows with the ranks, or is the planner's choice
  std::optional<int64_t> micro_batch;
  std::optional<bool> sequence_parallel;
  std::optional<RecomputeMode> recompute;       // of all blocks
  std::vector<RecomputeMode> recompute_blocks;  // in its place, of each; of those after the last one: none
  std::optional<OffloadMode> offload;
  std::optional<double> offload_fraction;  // with kOptimizer, of the states' bytes on a rank; unset: open
  std::optional<PipelineSchedule> schedule;
  std::optional<int64_t> interleave;  // chunks per stage
  std::vector<std::string> cuts;      // globs: the first node of each stage (or chunk) but the first
  // Per stage: data, tensor, context, expert -> size; what it leaves out is as in `axes`. Empty: all stages are alike.
  std::vector<std::map<std::string, int64_t>> stages;
  std::vector<ValuePin> values;  // the last one that matches wins
  bool operator==(const PinRecipe&) const = default;

  // Size of a pinned axis; nullopt when it is free.
  std::optional<int64_t> axis(const std::string& name) const;
};

struct Recipe {
  std::vector<LossRecipe> loss;  // none: in the model (training_info, ONNX Runtime artifacts), else an error
  std::map<std::string, MetricRecipe> metrics;
  std::optional<OptimizerRecipe> optimizer;  // unset: in the model, else the reader's default
  ScheduleRecipe schedule;
  BatchRecipe batch;
  std::map<std::string, int64_t> bind;  // symbolic dimension -> extent; of `lengths`, the largest
  LengthsRecipe lengths;                // `batch` and the pins are for the largest
  Precision precision = Precision::kFp32;
  LossScaleRecipe loss_scale;  // of fp16
  Fp8Recipe fp8;               // of fp8
  std::optional<double> clip_grad_norm, clip_grad_value;
  std::optional<EmaRecipe> ema;
  RecomputeMode recompute = RecomputeMode::kAuto;
  AttentionKernel attention = AttentionKernel::kAuto;  // kernels.attention
  std::vector<std::string> trainable, frozen;          // globs over initializer names; frozen wins
  int64_t seed = 0;
  std::vector<InitRule> init;
  std::optional<DataRecipe> data;
  std::optional<EvaluateRecipe> evaluate;
  SemanticsRecipe semantics;
  Compression compress = Compression::kNone;
  std::optional<ReproducibleRecipe> reproducible;  // unset: sums have any order
  RunRecipe run;
  PinRecipe pin;
  std::map<std::string, std::string> names;  // name in the file -> name to use
  bool operator==(const Recipe&) const = default;

  // Of a block, by its number from 0; pins go before `recompute`.
  RecomputeMode recompute_of(int32_t block) const;
};

// The schedule of a group whose rate is `lr` where the optimizer's is `base`: the same curve, scaled.
ScheduleRecipe scaled_schedule(const ScheduleRecipe& schedule, double lr, double base);

// PyTorch's defaults of `kind` (lamb: those of Apex's FusedLAMB; lion: those of its paper's code).
OptimizerRecipe default_optimizer(OptimizerKind kind);

// A part of kOneCycle: annealed from `from` to `to`, and at `to` at step `end`.
struct OneCyclePhase {
  double end, from, to;
};
std::vector<OneCyclePhase> one_cycle_phases(const ScheduleRecipe& schedule, double lr);
// The timescale of kInverseSqrt, its default where it is unset.
double inverse_sqrt_timescale(const ScheduleRecipe& schedule);
// Of a warm-up, shares of the rate: at step 0, and what each step adds.
std::pair<double, double> warmup_line(const ScheduleRecipe& schedule);

// Rate at optimizer step `step` >= 0 where the highest is `lr`; docs/train_yaml.md has the formulas.
double learning_rate(const ScheduleRecipe& schedule, double lr, int64_t step);

}  // namespace partita
