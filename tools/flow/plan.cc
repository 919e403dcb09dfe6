#include "tools/flow/plan.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <set>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "base/text_file.h"
#include "codegen/emit_program.h"
#include "codegen/prepare/expand_composites.h"
#include "codegen/prepare/rematerialize.h"
#include "frontend/annotated_layout.h"
#include "ir/recipe/lengths.h"
#include "ir/recipe/pins.h"
#include "ir/recipe/read_recipe.h"
#include "partitioner/layout/fixed_parts.h"
#include "partitioner/planner/cost/memory/program_memory.h"
#include "partitioner/planner/space/layout_space.h"
#include "partitioner/stages/separable_samples.h"
#include "passes/forward/choose_fp8.h"
#include "passes/pipeline.h"
#include "passes/training/recompute.h"
#include "tools/flow/device_memory.h"
#include "tools/flow/partition.h"

namespace partita {
namespace {

constexpr const char* kAnyGpu = "sm_80";  // memory is allocated alike for all
constexpr size_t kMostUnits = 256;        // of models that are allocated: half a minute for a thousand layers
// That compute something again.
constexpr RecomputeMode kModes[] = {RecomputeMode::kSelective, RecomputeMode::kAttention, RecomputeMode::kMlp,
                                    RecomputeMode::kAllButAttention, RecomputeMode::kFull};
constexpr int64_t kAnalysisBatch = 2;  // of a symbolic batch dimension: all counts are per sample

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

SearchOptions search_options(const Recipe& recipe) {
  SearchOptions o;
  o.pin = recipe.pin;
  o.recompute = recipe.recompute;
  o.micro = recipe.batch.micro;
  return o;
}

// In a fixed order of sums, a micro-batch is one of the parts, and the backward part what it is in all layouts.
absl::Status fix_parts(const Recipe& recipe, Planning& p) {
  if (!recipe.reproducible) return absl::OkStatus();
  Layout any;
  PARTITA_RETURN_IF_ERROR(partita::fix_parts(recipe, p.problem.global_batch, any));
  p.problem.reproducible = recipe.reproducible;
  p.options.micro = any.micro_batch;
  if (recipe.recompute == RecomputeMode::kAuto) p.options.recompute = RecomputeMode::kNone;
  return absl::OkStatus();
}

// Samples of a step: as said, or those of as many micro-batches as a replica takes where the replicas are pinned.
absl::StatusOr<int64_t> global_batch(const Recipe& recipe, int64_t exported) {
  const BatchRecipe& batch = recipe.batch;
  if (batch.global || !batch.accumulation) return batch.global.value_or(exported);
  const std::optional<int64_t> micro = recipe.pin.micro_batch ? recipe.pin.micro_batch : batch.micro;
  if (micro && recipe.pin.axis("data"))
    return *micro * *batch.accumulation * *recipe.pin.axis("data") * recipe.pin.axis("expert").value_or(1);
  return absl::InvalidArgumentError(
      cat("batch.accumulation: a step has micro x ", *batch.accumulation,
          " samples of each data-parallel rank, and how many ranks that are is searched; expected batch.global (--set "
          "batch.global=N), or batch.micro and a pinned data axis (--pin data=N)"));
}

// Why one rank cannot compute a run of `samples` in parts; empty where it can. What formulas do not show, the compiler
// is asked for.
std::string why_whole(ModelSource& source, const Graph& graph, std::optional<int64_t> symbolic_batch) {
  if (samples_add_up(graph)) return "";
  Recipe r = source.recipe();
  r.pin = {}, r.pin.micro_batch = 1;
  r.batch.micro.reset(), r.batch.accumulation.reset();
  r.compress = Compression::kNone;
  if (!r.semantics.moe) r.batch.global = symbolic_batch;
  PassRun run = PassRun::unchecked();
  PhaseTimes times;
  const auto partition = partition_model(source, r, {.ranks = 1}, run, times);
  return partition.ok() ? "" : std::string(partition.status().message());
}

// Bytes of the programs that the compiler makes of a layout, over the recipe, for the kind of device that the cluster
// has: the most of any number of samples that a step takes in the run.
absl::StatusOr<std::vector<double>> allocate(ModelSource& source, const Problem& problem, const Layout& layout) {
  Recipe recipe = recipe_of(source, problem, layout);
  const std::vector<DeviceGroup>& groups = problem.cluster->groups;
  TargetOptions target{.strict = recipe.reproducible.has_value()};
  if (std::any_of(groups.begin(), groups.end(), [](const DeviceGroup& g) { return g.device.host_update_rate > 0; }))
    target.gpu = kAnyGpu;
  std::set<std::optional<int64_t>> batches = {recipe.batch.global};
  for (const BatchPhase& phase : recipe.batch.ramp) batches.insert(phase.samples);
  std::vector<double> most;
  for (const std::optional<int64_t>& samples : batches) {
    recipe.batch.global = samples;
    PassRun run = PassRun::unchecked();
    PhaseTimes times;
    PARTITA_ASSIGN_OR_RETURN(
        const Partition partition,
        partition_model(source, recipe, {.ranks = layout.ranks(), .row_bytes = target.row_bytes()}, run, times));
    PARTITA_ASSIGN_OR_RETURN(const std::vector<EmittedProgram> programs,
                             emit_programs(partition.programs.stages, target, EmitUntil::kMemory, run));
    most.resize(programs.size(), 0);
    for (size_t k = 0; k < programs.size(); ++k) most[k] = std::max(most[k], device_bytes(programs[k].program));
  }
  return most;
}

// A model as it was read, and what was counted of it.
struct CountedModel {
  std::shared_ptr<const ImportedModel> imported;
  WorkloadOptions options;
  Workload workload;
};

absl::StatusOr<Graph> graph_for(const Recipe& recipe, const ImportedModel& model) {
  const PassContext context{.recipe = recipe, .training = model.training.value_or(TrainingSpec{})};
  PassRun run = PassRun::unchecked();
  return run_passes(graph_passes(PassUse::kTraining), model.graph, context, run);
}

absl::StatusOr<std::shared_ptr<const ImportedModel>> import_for_analysis(ModelSource& source) {
  const Recipe& recipe = source.recipe();
  const auto& moe = recipe.semantics.moe;
  const int64_t batch = moe ? moe->group.value_or(recipe.batch.global.value_or(kAnalysisBatch)) : kAnalysisBatch;
  PARTITA_ASSIGN_OR_RETURN(const auto imported, source.import(batch));
  const std::vector<State>& states = imported->graph.states;
  const bool statistics =
      std::any_of(states.begin(), states.end(), [](const State& s) { return s.kind == StateKind::kRunning; });
  // They are of the whole batch, so its size matters where it is symbolic.
  return statistics && recipe.batch.global ? source.import(recipe.batch.global) : imported;
}

// Where samples meet in the loss, a run takes the global batch.
absl::Status take_together(ModelSource& source, std::shared_ptr<const ImportedModel>& model) {
  const Recipe& recipe = source.recipe();
  if (!recipe.batch.global || model->info.any_batch) return absl::OkStatus();
  PARTITA_ASSIGN_OR_RETURN(const ModelSource::ForBatch taken, source.for_batch(model, *recipe.batch.global));
  if (taken.together) model = taken.model;
  return absl::OkStatus();
}

// Of each forward node, under which modes it is computed again.
std::vector<RecomputeModes> recomputed_again(const Graph& graph) {
  std::vector<RecomputeModes> again(graph.nodes.size(), 0);
  for (RecomputeMode mode : kModes) {
    const std::vector<bool> nodes = recomputed_nodes(graph, mode);
    for (size_t n = 0; n < nodes.size(); ++n) again[n] |= nodes[n] ? mode_bit(mode) : 0;
  }
  return again;
}

// Which products multiply fp8 numbers.
std::vector<Fp8Product> fp8_products_of(const Graph& graph, const Recipe& recipe) {
  if (recipe.precision != Precision::kFp8) return {};
  return fp8_products(graph, recipe.fp8);
}

absl::StatusOr<CountedModel> count_model(ModelSource& source) {
  CountedModel counted;
  PARTITA_ASSIGN_OR_RETURN(counted.imported, import_for_analysis(source));
  PARTITA_RETURN_IF_ERROR(take_together(source, counted.imported));
  const ImportedModel& imported = *counted.imported;
  // The search decides these; the analysis counts elements of the plain model.
  Recipe plain = source.recipe();
  plain.precision = Precision::kFp32, plain.attention = AttentionKernel::kAuto;
  plain.recompute = RecomputeMode::kNone, plain.pin.recompute.reset(), plain.pin.recompute_blocks.clear();
  PARTITA_ASSIGN_OR_RETURN(const Graph graph, graph_for(plain, imported));
  counted.options = {.batch_statistics = source.recipe().semantics.batch_norm,
                     .again = recomputed_again(graph),
                     .fp8 = fp8_products_of(graph, source.recipe())};
  PARTITA_ASSIGN_OR_RETURN(counted.workload, analyse(graph, counted.options));
  Workload& w = counted.workload;
  const auto& moe = source.recipe().semantics.moe;
  const bool grouped = moe && moe->group;  // then a run takes a group
  w.exported_batch = imported.info.any_batch && !grouped ? 0 : static_cast<int64_t>(w.samples);
  if (!w.whole_batches) {
    const auto any = imported.info.any_batch ? std::optional(kAnalysisBatch) : std::nullopt;
    w.whole_runs = why_whole(source, graph, any);
  }
  return counted;
}

// What programs of the model keep for backward, in the recipe's precision, under each mode that layouts may have.
absl::Status count_kept(const Recipe& recipe, const CountedModel& counted, Workload& w) {
  Recipe own = recipe;
  own.recompute = RecomputeMode::kNone, own.pin.recompute.reset(), own.pin.recompute_blocks.clear();
  PARTITA_ASSIGN_OR_RETURN(const Graph kept, graph_for(own, *counted.imported));
  auto count = [&](const Graph& graph, RecomputeMode mode) -> absl::Status {
    const WorkloadOptions options{.batch_statistics = counted.options.batch_statistics};
    PARTITA_ASSIGN_OR_RETURN(const Workload program, analyse(rematerialize(expand_composites(graph)).graph, options));
    return take_kept(w, program, mode);
  };
  PARTITA_RETURN_IF_ERROR(count(kept, RecomputeMode::kNone));
  // Of models with many layers that takes seconds for each mode.
  const bool math = recipe.attention == AttentionKernel::kMath, many = w.units.size() > kMostUnits;
  const std::vector<RecomputeMode>& blocks = recipe.pin.recompute_blocks;
  for (RecomputeMode mode : kModes) {
    const bool asked = recipe.recompute_of(0) == mode || std::count(blocks.begin(), blocks.end(), mode) > 0;
    const bool wanted = !many || asked || (math && mode == RecomputeMode::kSelective);
    if (mode == RecomputeMode::kFull || !wanted) continue;
    own.recompute = mode;
    PARTITA_ASSIGN_OR_RETURN(const Graph graph, recompute(kept, {.recipe = own}));
    PARTITA_RETURN_IF_ERROR(count(graph, mode));
  }
  return absl::OkStatus();
}

// What steps of the lengths below the largest cost.
absl::Status count_shorter(const PlanRequest& r, Planning& p) {
  const LengthsRecipe& lengths = p.recipe.lengths;
  if (lengths.extents.empty()) return absl::OkStatus();
  p.problem.length = lengths.extents.back();
  p.shorter.reserve(lengths.extents.size());
  for (int64_t length : lengths.extents) {
    if (length == p.problem.length) continue;
    PARTITA_ASSIGN_OR_RETURN(const Recipe own, recipe_of_length(p.recipe, p.problem.global_batch, length));
    ModelSource source(r.model, own);
    const std::string what = cat("bind.", lengths.dimension, " ", length);
    absl::StatusOr<CountedModel> counted = count_model(source);
    if (!counted.ok()) return with_context(counted.status(), what);
    Workload& w = p.shorter.emplace_back(std::move(counted->workload));
    if (w.units.size() != p.workload.units.size())
      return absl::InvalidArgumentError(cat(what, ": expected the ", p.workload.units.size(), " units of length ",
                                            p.problem.length, ", found ", w.units.size(), "; plan for one length"));
    if (p.problem.own_programs) PARTITA_RETURN_IF_ERROR(count_kept(own, *counted, w));
    p.problem.shorter.push_back({length, &w});
  }
  return absl::OkStatus();
}

}  // namespace

Recipe recipe_of(const ModelSource& source, const Problem& problem, const Layout& layout) {
  Recipe recipe = source.recipe();
  PinRecipe pin = to_pins(layout);
  pin.values = recipe.pin.values;
  recipe.pin = std::move(pin);
  recipe.batch.global = problem.global_batch;
  recipe.batch.accumulation.reset();
  return recipe;
}

absl::StatusOr<Workload> analyse_model(ModelSource& source) {
  PARTITA_ASSIGN_OR_RETURN(CountedModel counted, count_model(source));
  return std::move(counted.workload);
}

absl::StatusOr<ProfileLibrary> load_profiles(const std::string& file) {
  PARTITA_ASSIGN_OR_RETURN(ProfileLibrary library, ProfileLibrary::load());
  if (file.empty()) return library;
  PARTITA_ASSIGN_OR_RETURN(std::string text, read_text_file(file, kMaxYamlBytes));
  PARTITA_RETURN_IF_ERROR(library.overlay(text, file));
  return library;
}

absl::StatusOr<std::unique_ptr<Planning>> prepare_plan(const PlanRequest& r) {
  auto p = std::make_unique<Planning>();
  if (!r.train_file.empty() || !r.sets.empty()) {
    PARTITA_ASSIGN_OR_RETURN(p->recipe, load_recipe(r.train_file, r.sets));
  }
  if (r.precision) p->recipe.precision = *r.precision;
  for (const std::string& preset : r.like) PARTITA_RETURN_IF_ERROR(apply_like(p->recipe, preset));
  for (const std::string& pin : r.pins) PARTITA_RETURN_IF_ERROR(apply_pin(p->recipe, pin));
  PARTITA_RETURN_IF_ERROR(check_recipe(p->recipe, r.train_file.empty() ? "command line" : r.train_file));
  PARTITA_ASSIGN_OR_RETURN(p->library, load_profiles(r.profile_file));
  PARTITA_ASSIGN_OR_RETURN(p->cluster, r.cluster.empty() ? load_cluster(r.cluster_file, p->library)
                                                         : parse_cluster(r.cluster, r.cluster_file, p->library));
  auto start = std::chrono::steady_clock::now();
  p->source = std::make_unique<ModelSource>(r.model, p->recipe);
  PARTITA_ASSIGN_OR_RETURN(CountedModel counted, count_model(*p->source));
  p->warnings = counted.imported->warnings;
  p->workload = std::move(counted.workload);
  p->problem.workload = &p->workload;
  p->problem.cluster = &p->cluster;
  // Blocks of another size are rounded, and multiplied in bf16.
  const bool emulated = p->recipe.precision == Precision::kFp8 && p->recipe.fp8.block != Fp8Recipe{}.block;
  p->problem.options.precision = emulated ? Precision::kBf16 : p->recipe.precision;
  p->problem.options.flash = p->recipe.attention != AttentionKernel::kMath;
  PARTITA_ASSIGN_OR_RETURN(p->problem.global_batch, global_batch(p->recipe, static_cast<int64_t>(p->workload.samples)));
  p->problem.accumulation = p->recipe.batch.accumulation;
  p->problem.clip = p->recipe.clip_grad_norm.has_value();
  p->problem.skips = p->recipe.run.skips();
  p->problem.compress = p->recipe.compress;
  p->problem.batch_statistics = p->recipe.semantics.batch_norm;
  p->options = search_options(p->recipe);
  p->options.time_limit = r.time_limit;
  PARTITA_RETURN_IF_ERROR(fix_parts(p->recipe, *p));
  bool published = false;
  if (r.published) {
    PARTITA_ASSIGN_OR_RETURN(const Space space,
                             layout_space(p->problem, p->options.pin, p->options.recompute, p->options.micro));
    published = space.fixed;
  }
  if (!published) {
    PARTITA_RETURN_IF_ERROR(count_kept(p->recipe, counted, p->workload));
    p->problem.own_programs = true;
    // By way of a copy: what is assigned is a part of what is assigned to.
    for (DeviceGroup& g : p->cluster.groups) g.device = DeviceProfile(g.device.of_own_programs());
  }
  PARTITA_RETURN_IF_ERROR(count_shorter(r, *p));
  p->analysis_seconds = seconds_since(start);
  if (published) return p;
  if (p->workload.units.size() > kMostUnits) return p;
  // Programs are the same on other hardware: each layout is allocated once.
  using Bytes = absl::StatusOr<std::vector<double>>;
  auto known = std::make_shared<std::vector<std::pair<Layout, Bytes>>>();
  p->options.allocate = [planning = p.get(), known](const Layout& l) -> Bytes {
    for (const auto& [layout, bytes] : *known) {
      if (layout == l) return bytes;
    }
    return known->emplace_back(l, allocate(*planning->source, planning->problem, l)).second;
  };
  return p;
}

absl::StatusOr<SearchOptions> options_with(const Planning& planning, const std::vector<std::string>& like,
                                           const std::vector<std::string>& pins) {
  Recipe recipe = planning.recipe;
  for (const std::string& preset : like) PARTITA_RETURN_IF_ERROR(apply_like(recipe, preset));
  for (const std::string& pin : pins) PARTITA_RETURN_IF_ERROR(apply_pin(recipe, pin));
  SearchOptions o = search_options(recipe);
  o.micro = planning.options.micro, o.recompute = planning.options.recompute;
  o.time_limit = planning.options.time_limit;
  o.allocate = planning.options.allocate;
  return o;
}

absl::StatusOr<std::unique_ptr<Planning>> plan_again(const Plan& plan) {
  const Plan::Inputs& in = plan.inputs;
  if (in.model.empty() || (in.cluster_path.empty() && in.cluster.empty()))
    return absl::FailedPreconditionError("the plan does not say which model and cluster it was made for");
  if (!in.refined.empty())
    return absl::FailedPreconditionError(
        cat("the plan was made with a profile that ", quote(in.refined),
            " corrected, and nobody wrote that down: plan again with --refined-profile FILE"));
  const PlanRequest r{.model = in.model,
                      .train_file = in.train,
                      .cluster_file = in.cluster_path,
                      .cluster = in.cluster_path.empty() ? in.cluster : "",
                      .profile_file = in.profiles,
                      .pins = in.pins,
                      .like = in.like,
                      .precision = in.precision,
                      .sets = in.sets};
  PARTITA_ASSIGN_OR_RETURN(std::unique_ptr<Planning> p, prepare_plan(r));
  if (p->cluster.text != in.cluster)
    p->warnings.push_back(
        cat(quote(in.cluster_path), " has changed since the plan was made; it is taken as it is now"));
  return p;
}

absl::StatusOr<Layout> planned_layout(const Planning& planning, const Plan& plan) {
  SearchOptions options = planning.options;
  options.pin = plan.pin;
  CostModel model(planning.problem);
  PARTITA_ASSIGN_OR_RETURN(SearchResult found, search(model, options));
  return found.best ? found.best->layout : found.nearest->layout;
}

}  // namespace partita
