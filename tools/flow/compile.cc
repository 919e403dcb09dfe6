#include "tools/flow/compile.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <set>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "codegen/emit_program.h"
#include "fmt/format.h"
#include "partitioner/communicate/bucket.h"
#include "partitioner/communicate/bucket_gathers.h"
#include "partitioner/communicate/prefetch_gathers.h"
#include "partitioner/communicate/regather_in_backward.h"
#include "partitioner/communicate/state_gathers.h"
#include "partitioner/layout/parallel_layout.h"
#include "partitioner/localize/localize.h"
#include "partitioner/planner/cluster/device_profile.h"
#include "partitioner/prepare/group_statistics.h"
#include "partitioner/prepare/moe_capacity.h"
#include "partitioner/shard/plan_shardings.h"
#include "partitioner/stages/split_stages.h"
#include "passes/forward/index_bounds.h"
#include "passes/forward/initialize.h"
#include "runtime/data/data_config_json.h"
#include "runtime/device/device.h"
#include "runtime/program/batched_launches.h"
#include "runtime/program/communicators.h"
#include "runtime/program/params.h"
#include "runtime/program/sides.h"
#include "tools/verify/bundle/bundle.h"

namespace partita {
namespace {

constexpr int64_t kBucketBytes = int64_t{25} << 20;  // as torch's DistributedDataParallel

class Stopwatch {
 public:
  explicit Stopwatch(Compiled& compiled) : compiled_(compiled) {}
  void lap(std::string phase) {
    auto now = std::chrono::steady_clock::now();
    compiled_.seconds.emplace_back(std::move(phase), std::chrono::duration<double>(now - last_).count());
    last_ = now;
  }

 private:
  Compiled& compiled_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// train.yaml's data settings as the runtime has them.
runtime::DataConfig data_settings(const DataRecipe& d, uint64_t seed) {
  runtime::DataConfig out;
  out.seed = d.seed ? static_cast<uint64_t>(*d.seed) : seed;
  if (d.kind || !d.path.empty()) out.kind = d.kind ? *d.kind : runtime::guess_data_kind(d.path);
  out.path = d.path;
  out.columns = d.columns;
  out.shuffle = d.shuffle;
  out.prefetch = d.prefetch;
  if (d.dtype) out.dtype = *d.dtype;
  if (d.vocab) out.vocabulary = *d.vocab;
  out.shift = d.shift;
  out.documents = d.documents;
  out.end_of_document = d.end_of_document;
  out.pad_token = d.pad_token;
  out.ignore_label = d.ignore_label;
  std::vector<runtime::WeightedSource> sources;
  for (const SourceRecipe& s : d.sources) {
    runtime::WeightedSource source{out, s.weight.value_or(0)};
    source.config.path = s.path;
    source.config.kind = s.kind ? *s.kind : d.kind ? *d.kind : runtime::guess_data_kind(s.path);
    if (s.dtype) source.config.dtype = *s.dtype;
    if (s.documents) source.config.documents = *s.documents;
    if (s.end_of_document) source.config.end_of_document = s.end_of_document;
    sources.push_back(std::move(source));
  }
  out.sources = std::move(sources);
  return out;
}

absl::Status take_data_settings(const Recipe& recipe, Compiled& out) {
  out.seed = static_cast<uint64_t>(recipe.seed);
  out.data = data_settings(recipe.data.value_or(DataRecipe{}), out.seed);
  out.data_kind_said = recipe.data && recipe.data->kind;
  if (!recipe.evaluate) return absl::OkStatus();
  out.evaluation_data = data_settings(recipe.evaluate->data, out.seed);
  out.evaluate_every = recipe.evaluate->every;
  out.evaluate_batches = recipe.evaluate->batches.value_or(-1);
  return absl::OkStatus();
}

// PipeDream's micro-batch is an optimizer step: a run of the graph, where its batch dimension can be bound.
ImportOptions import_options_of(const Recipe& recipe, const ParallelLayout& layout) {
  ImportOptions options = import_options(recipe);
  const std::optional<int64_t> micro = recipe.pin.micro_batch ? recipe.pin.micro_batch : recipe.batch.micro;
  if (layout.schedule == PipelineSchedule::kPipedream && micro) options.batch = *micro * layout.sample_ranks();
  return options;
}

// The programs of the ranks: one for all, or one for each stage of a pipeline.
absl::StatusOr<std::vector<LocalProgram>> localize_stages(const PlannedGraph& planned, const ParallelLayout& layout,
                                                          const StateOwners& owners = {}) {
  PARTITA_ASSIGN_OR_RETURN(LocalProgram local, localize(planned.graph, planned.plan));
  if (layout.pipeline == 1) return std::vector<LocalProgram>{std::move(local)};
  return split_stages(local, planned.plan.mesh.find(kStageAxis), {layout.schedule, layout.chunks, layout.cuts}, owners);
}

// The same model imported for inference, every state and input laid out as training has it.
absl::StatusOr<CompiledEvaluation> compile_evaluation(const CompileRequest& request, Recipe& recipe,
                                                      const PlannedStages& training,
                                                      const ParallelLayout& training_layout, const BatchPlan& batch,
                                                      const StateOwners& owners, PassContext context) {
  ParallelLayout layout = training_layout;
  if (layout.schedule == PipelineSchedule::kPipedream) layout.schedule = PipelineSchedule::k1f1b;  // nothing is updated
  ImportOptions options = import_options_of(recipe, training_layout);
  options.training = false;
  PARTITA_ASSIGN_OR_RETURN(ImportedModel model, import_model(request.model, options, recipe));
  PARTITA_ASSIGN_OR_RETURN(Graph graph, run_passes(evaluation_pipeline(), std::move(model.graph), context));
  std::map<std::string_view, DType> held;
  for (const State& s : training.joined.graph.states) held[s.name] = training.joined.graph.type(s.value).dtype;
  for (const State& s : graph.states) {
    auto at = held.find(s.name);
    PARTITA_CHECK(at == held.end() || at->second == graph.type(s.value).dtype,
                  cat("state ", quote(s.name), " is ", dtype_name(graph.type(s.value).dtype), " in evaluation"));
  }
  PlannedStages planned;
  if (layout.stages.empty()) {
    PARTITA_ASSIGN_OR_RETURN(planned.joined, plan_shardings_like(training.joined, graph, recipe, layout, batch));
  } else {
    PARTITA_ASSIGN_OR_RETURN(planned, plan_stages_like(training, graph, recipe, layout, batch, owners));
  }
  PARTITA_ASSIGN_OR_RETURN(std::vector<LocalProgram> stages, localize_stages(planned.joined, layout, owners));
  CompiledEvaluation out;
  for (const LocalProgram& stage : stages) {
    PARTITA_ASSIGN_OR_RETURN(runtime::Program program, emit_program(stage, request.target, &out.claims.emplace_back()));
    out.programs.push_back(std::move(program));
  }
  out.serial = verifier::without_weights(std::move(graph));
  return out;
}

std::vector<InitialTensor> collect_weights(const std::vector<LocalProgram>& stages) {
  std::vector<InitialTensor> weights;
  std::set<std::string> known;  // stages may share a state
  for (const LocalProgram& local : stages) {
    for (size_t k = 0; k < local.graph.states.size(); ++k) {
      const State& s = local.graph.states[k];
      bool here = std::holds_alternative<Literal>(s.initial) || std::holds_alternative<FileRange>(s.initial);
      if (!here || !known.insert(s.name).second) continue;
      TensorType whole{local.graph.type(s.value).dtype, local.states[k].logical};
      weights.push_back({s.name, std::move(whole), s.initial, s.kind == StateKind::kParameter});
    }
  }
  return weights;
}

}  // namespace

namespace {

// What NCCL takes on GPUs whose profile says nothing else.
const DeviceProfile& usual_device() {
  static const DeviceProfile usual = [] {
    const auto library = ProfileLibrary::load();
    PARTITA_CHECK(library.ok() && library->device("defaults") != nullptr, "profiles that are built in");
    return *library->device("defaults");
  }();
  return usual;
}

double communicator_bytes(const runtime::Communicators& c) {
  const DeviceProfile& d = usual_device();
  return d.communicator_receive_bytes * static_cast<double>(c.groups + c.receives) +
         d.communicator_send_bytes * static_cast<double>(c.groups + c.sends);
}

void add_device_code(const runtime::Program& program, DeviceCodeSummary& s) {
  if (!runtime::needs_device(program)) return;
  if (const runtime::LaunchCount count = runtime::count_launches(program); count.steps > s.steps)
    s.steps = count.steps, s.launches = count.launches;
  s.communicator_bytes =
      std::max(s.communicator_bytes, static_cast<int64_t>(communicator_bytes(runtime::communicators(program))));
  std::set<std::string> seen;
  for (const auto& segment : program.segments) {
    for (const runtime::Step& step : segment.steps) {
      if (step.kind != runtime::StepKind::kKernel || !step.params.count("threads")) continue;
      if (!seen.insert(step.name).second) continue;
      ++s.kernels;
      s.most_registers = std::max(s.most_registers, runtime::int_param(step.params, "registers", 0));
      int64_t spilled = runtime::int_param(step.params, "spilled_bytes", 0);
      s.spilling += spilled > 0;
      s.spilled_bytes += spilled;
    }
  }
}

// A pattern that is mistyped lets weight decay at what it was to spare.
void warn_of_idle_patterns(const Recipe& recipe, const Graph& graph, std::vector<std::string>& warnings) {
  if (!recipe.optimizer) return;
  for (const std::string& glob : recipe.optimizer->no_decay) {
    if (std::none_of(graph.states.begin(), graph.states.end(),
                     [&](const State& s) { return s.kind == StateKind::kParameter && glob_match(glob, s.name); }))
      warnings.push_back(cat("optimizer.no_decay: no parameter has a name that matches ", quote(glob)));
  }
}

}  // namespace

DeviceCodeSummary device_code(const std::vector<runtime::Program>& programs) {
  DeviceCodeSummary s;
  for (const runtime::Program& program : programs) add_device_code(program, s);
  return s;
}

std::vector<int64_t> weight_versions(const Compiled& compiled) {
  std::vector<int64_t> versions;
  for (const runtime::Program& stage : compiled.programs) versions.push_back(stage.slots > 1 ? stage.slots : 0);
  return versions;
}

std::string describe_choices(const Compiled& compiled) {
  std::string text;
  if (compiled.statistic_samples > 0) {
    text += fmt::format("semantics: batch_norm: replica: each statistic is of {} samples of the step's {}\n",
                        compiled.statistic_samples, compiled.samples);
  }
  if (compiled.capacity_samples > 0) {
    text += fmt::format("semantics: moe: experts' capacity is that of {} samples of the step's {}\n",
                        compiled.capacity_samples, compiled.samples);
  }
  if (compiled.schedule == PipelineSchedule::kPipedream) {
    std::string versions;
    for (int64_t n : weight_versions(compiled)) append(versions, versions.empty() ? "" : ", ", n);
    text += fmt::format(
        "schedule: pipedream: asynchronous: each of a step's {} micro-batches is an optimizer step, on weights that "
        "lack those of micro-batches in flight ({} versions stashed on the stages); training is not that of the serial "
        "program\n",
        compiled.programs.front().micro_batches, versions);
  }
  if (compiled.compress != Compression::kNone) {
    const CompressedGradients& c = compiled.compressed;
    text += fmt::format(
        "compress: {}: {} sums of gradients travel compressed, in {:.1f} MB instead of {:.1f} MB a rank and step; "
        "training is not that of the serial program\n",
        enum_name(compiled.compress), c.sums, static_cast<double>(c.bytes) / 1e6,
        static_cast<double>(c.plain_bytes) / 1e6);
  }
  return text;
}

ImportOptions import_options(const Recipe& recipe) {
  ImportOptions o;
  o.bind = recipe.bind;
  o.batch = recipe.batch.global;
  if (const auto& moe = recipe.semantics.moe; moe && moe->group)
    o.batch = moe->group;  // what the graph takes at a time
  o.trainable = recipe.trainable;
  o.frozen = recipe.frozen;
  o.names = recipe.names;
  o.seed = recipe.seed;
  o.batch_norm_training = recipe.semantics.batch_norm_training;
  return o;
}

absl::StatusOr<ImportedModel> import_model(const std::string& path, const ImportOptions& options, Recipe& recipe) {
  PARTITA_ASSIGN_OR_RETURN(ImportedModel model, import_onnx(path, options));
  if (recipe.semantics.moe_dropless) PARTITA_RETURN_IF_ERROR(check_dropless(model.graph));
  if (!recipe.semantics.moe) return model;
  PARTITA_ASSIGN_OR_RETURN(int64_t exported, samples_of_run(model.graph));
  if (!recipe.batch.global && !recipe.batch.accumulation) recipe.batch.global = exported;
  PARTITA_ASSIGN_OR_RETURN(model.graph, set_moe_capacity(model.graph, *recipe.semantics.moe));
  return model;
}

std::map<std::string, int64_t> memory_bytes(const runtime::Program& p) {
  return {{"state", p.region_bytes[0]},    {"host_state", p.region_bytes[1]}, {"arena", p.region_bytes[2]},
          {"constant", p.region_bytes[3]}, {"input", p.region_bytes[4]},      {"host_arena", p.region_bytes[5]}};
}

namespace {

// The reserve has room for some communicators; programs for GPUs say how many they have.
double beyond_reserve(const runtime::Program& p) {
  if (!runtime::needs_device(p)) return 0;
  const runtime::Communicators c = runtime::communicators(p);
  return usual_device().beyond_reserve(static_cast<double>(c.groups), static_cast<double>(c.sends),
                                       static_cast<double>(c.receives));
}

}  // namespace

double device_bytes(const runtime::Program& p) {
  double bytes = beyond_reserve(p);
  const std::map<std::string, int64_t> regions = memory_bytes(p);
  for (const char* region : {"state", "arena", "constant", "input"}) bytes += static_cast<double>(regions.at(region));
  return bytes;
}

namespace {

// Holds the bytes that programs take on a device, as they were laid out, against what the plan leaves them: its
// memory model is that of common software, not a layout of this program.
absl::Status check_room(const std::vector<runtime::Program>& programs, const std::vector<double>& room) {
  if (room.empty()) return absl::OkStatus();
  const double least = *std::min_element(room.begin(), room.end());
  for (size_t k = 0; k < programs.size(); ++k) {
    const std::map<std::string, int64_t> bytes = memory_bytes(programs[k]);
    const double needs = device_bytes(programs[k]), has = room.size() == programs.size() ? room[k] : least,
                 beyond = beyond_reserve(programs[k]);
    if (needs <= has) continue;
    auto gigabytes = [](double b) { return fmt::format("{:.3g} GB", b / 1e9); };
    return absl::ResourceExhaustedError(cat(
        programs.size() > 1 ? cat("the program of stage ", k) : "the program", " needs ", gigabytes(needs),
        " of device memory (state ", gigabytes(static_cast<double>(bytes.at("state"))), ", working memory ",
        gigabytes(static_cast<double>(bytes.at("arena"))),
        beyond > 0 ? cat(", NCCL's communicators beyond the reserve ", gigabytes(beyond)) : "",
        "); the plan's devices have ", gigabytes(has),
        " beside the reserve. Plan again with a smaller micro_batch, recompute: full or a higher zero stage pinned, "
        "or --allow-infeasible to compile it all the same"));
  }
  return absl::OkStatus();
}

// Less communication, in larger parts, and earlier.
void arrange_communication(std::vector<LocalProgram>& stages, const ShardingPlan& plan, const Recipe& recipe,
                           Compiled& out) {
  for (LocalProgram& stage : stages) {
    const ShardingPlan::AxisUse axes = axis_use(plan, stage.stage);
    gather_again(stage, axes.scatter);
    const CompressedGradients c = compress_gradients(stage, recipe.compress, axes.samples, kBucketBytes);
    out.compressed.sums += c.sums, out.compressed.bytes += c.bytes, out.compressed.plain_bytes += c.plain_bytes;
    bucket_collectives(stage, kBucketBytes);
    bucket_gathers(stage, kBucketBytes);
    prefetch_gathers(stage);
    out.gathered_bytes = std::max(out.gathered_bytes, gathered_bytes(stage.graph));
  }
  if (out.compressed.sums > 0) out.compress = recipe.compress;
}

// `bounds`: of the inputs that are indices, by name.
absl::Status emit_programs(const CompileRequest& request, const std::vector<LocalProgram>& stages,
                           const std::map<std::string, IndexBounds>& bounds, Compiled& out) {
  for (const LocalProgram& stage : stages) {
    PARTITA_ASSIGN_OR_RETURN(runtime::Program program, emit_program(stage, request.target, &out.claims.emplace_back()));
    program.model = std::filesystem::path(request.model).filename().string();
    for (runtime::ProgramInput& in : program.inputs) {
      if (auto at = bounds.find(in.name); at != bounds.end()) in.bounds = at->second;
    }
    out.programs.push_back(std::move(program));
  }
  return absl::OkStatus();
}

// Stages whose expert axes differ leave whole what rows choose from: the graph is divided before it is cut.
int64_t expert_parts(const ParallelLayout& layout) {
  const bool alike = std::all_of(layout.stages.begin(), layout.stages.end(),
                                 [&](const ParallelLayout& s) { return s.expert == layout.stages[0].expert; });
  return layout.stages.empty() ? layout.expert : alike ? layout.stages[0].expert : 1;
}

}  // namespace

absl::StatusOr<Compiled> compile_model(const CompileRequest& request) {
  Compiled out;
  Stopwatch watch(out);
  Recipe recipe = request.recipe;
  PARTITA_ASSIGN_OR_RETURN(ParallelLayout layout, pinned_layout(recipe, request.ranks, out.warnings));
  out.ranks = layout.ranks();
  if (layout.pipeline > 1) out.schedule = layout.schedule;
  for (const ParallelLayout& stage : layout.stages)
    out.stage_axes.push_back(
        {{"data", stage.data}, {"expert", stage.expert}, {"context", stage.context}, {"tensor", stage.tensor}});
  if (!recipe.batch.global && recipe.batch.micro && recipe.batch.accumulation)
    recipe.batch.global = *recipe.batch.micro * *recipe.batch.accumulation * layout.sample_ranks();
  PARTITA_ASSIGN_OR_RETURN(ImportedModel model, import_model(request.model, import_options_of(recipe, layout), recipe));
  out.warnings.insert(out.warnings.end(), model.warnings.begin(), model.warnings.end());
  warn_of_idle_patterns(recipe, model.graph, out.warnings);
  PARTITA_RETURN_IF_ERROR(take_data_settings(recipe, out));
  watch.lap("import");
  PARTITA_ASSIGN_OR_RETURN(BatchPlan batch, plan_batch(model.graph, recipe, layout));
  if (recipe.semantics.moe) out.capacity_samples = batch.graph_batch;
  if (int64_t groups = batch.batch_ranks * batch.parts;
      recipe.semantics.batch_norm == BatchNormGroup::kReplica && groups > 1) {
    model.graph = group_samples(model.graph, groups);
    out.statistic_samples = batch.graph_batch / groups;
  }

  PassContext context{.recipe = recipe,
                      .training = model.training.value_or(TrainingSpec{}),
                      .micro_batches = batch.micro_batches,
                      .accumulate = batch.micro_batches * batch.parts > 1,
                      .update_each = layout.schedule == PipelineSchedule::kPipedream,
                      .expert_parts = expert_parts(layout),
                      .keep_gradients = request.keep_gradients};
  PARTITA_ASSIGN_OR_RETURN(model.graph, initialize(model.graph, context));
  PassOptions passes = request.passes;
  passes.times = &out.passes;
  PARTITA_ASSIGN_OR_RETURN(Graph graph, run_passes(training_pipeline(), std::move(model.graph), context, passes));
  out.warnings.insert(out.warnings.end(), context.warnings.begin(), context.warnings.end());
  watch.lap("passes");
  if (!passes.stop_after.empty()) {
    out.stopped = true;
    return out;
  }

  PlannedStages planned;
  if (layout.stages.empty()) {
    PARTITA_ASSIGN_OR_RETURN(planned.joined, plan_shardings(graph, recipe, layout, batch, out.warnings));
  } else {
    PARTITA_ASSIGN_OR_RETURN(planned, plan_stages(graph, recipe, layout, batch, out.warnings));
  }
  PARTITA_ASSIGN_OR_RETURN(std::vector<LocalProgram> stages, localize_stages(planned.joined, layout));
  if (out.ranks > 1) arrange_communication(stages, planned.joined.plan, recipe, out);
  if (out.compress != recipe.compress) {
    out.warnings.push_back(cat("compress: ", enum_name(recipe.compress),
                               ": no gradient is summed over ranks that take different samples; none is compressed"));
  }
  watch.lap("partition");
  if (request.until != CompileUntil::kCode) {
    out.stopped = true;
    if (request.until == CompileUntil::kPartition) return out;
    for (const LocalProgram& stage : stages) out.programs.push_back(lay_out_program(stage, request.target));
    watch.lap("layout");
    return out;
  }
  if (recipe.evaluate) {
    auto evaluation = compile_evaluation(request, recipe, planned, layout, batch, state_owners(stages), context);
    if (!evaluation.ok()) return with_context(evaluation.status(), "evaluate");
    out.evaluation = *std::move(evaluation);
    watch.lap("evaluation");
  }

  PARTITA_RETURN_IF_ERROR(emit_programs(request, stages, index_bounds(graph), out));
  PARTITA_RETURN_IF_ERROR(check_room(out.programs, request.room));
  out.weights = collect_weights(stages);
  for (const State& s : graph.states)
    out.parameters += s.kind == StateKind::kParameter ? elements(graph.type(s.value).shape) : 0;
  out.samples = batch.graph_batch * batch.micro_batches;
  out.serial = verifier::without_weights(std::move(graph));
  watch.lap("code");
  return out;
}

}  // namespace partita
