#include "tools/flow/plan.h"

#include <algorithm>
#include <chrono>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "base/text_file.h"
#include "codegen/prepare/expand_composites.h"
#include "codegen/prepare/rematerialize.h"
#include "frontend/onnx_import.h"
#include "ir/recipe/pins.h"
#include "ir/recipe/read_recipe.h"
#include "nlohmann/json.hpp"
#include "partitioner/planner/cost/program_memory.h"
#include "partitioner/planner/report/plan_file.h"
#include "partitioner/stages/separable_samples.h"
#include "passes/pipeline.h"
#include "tools/flow/compile.h"

namespace partita {
namespace {

constexpr const char* kAnyGpu = "sm_80";  // memory is laid out alike for all
constexpr size_t kMostUnits = 256;        // of models that are laid out: half a minute for a thousand layers
constexpr int64_t kAnalysisBatch = 2;     // of a symbolic batch dimension: all counts are per sample

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

// Why one rank cannot compute a run of `samples` in parts; empty where it can. What formulas do not show, the compiler
// is asked for.
absl::StatusOr<std::string> why_whole(const std::string& model, const Recipe& recipe, const Graph& graph,
                                      std::optional<int64_t> symbolic_batch) {
  if (samples_add_up(graph)) return "";
  CompileRequest request{.model = model, .recipe = recipe, .ranks = 1, .until = CompileUntil::kPartition};
  Recipe& r = request.recipe;
  r.pin = {}, r.pin.micro_batch = 1;
  r.batch.micro.reset(), r.batch.accumulation.reset(), r.evaluate.reset();
  r.compress = Compression::kNone;
  if (!r.semantics.moe) r.batch.global = symbolic_batch;
  request.passes.verify = false;
  auto compiled = compile_model(request);
  return compiled.ok() ? "" : std::string(compiled.status().message());
}

// The plan's layout over the recipe, for the kind of device that the cluster has.
CompileRequest layout_request(const std::string& model, const Recipe& recipe, const Problem& problem, const Layout& l) {
  CompileRequest r{.model = model, .recipe = recipe, .ranks = l.devices(), .until = CompileUntil::kLayout};
  PinRecipe pin = to_pins(l);
  pin.values = recipe.pin.values;
  r.recipe.pin = std::move(pin);
  r.recipe.batch.global = problem.global_batch;
  r.recipe.evaluate.reset();
  const std::vector<DeviceGroup>& groups = problem.cluster->groups;
  if (std::any_of(groups.begin(), groups.end(), [](const DeviceGroup& g) { return g.device.host_update_rate > 0; }))
    r.target.gpu = kAnyGpu;
  r.passes.verify = false;
  return r;
}

// A model as it was read, and what was counted of it.
struct ReadModel {
  ImportedModel imported;
  WorkloadOptions options;
  Workload workload;
};

absl::StatusOr<ReadModel> read_model(const std::string& model, Recipe& recipe, int64_t* batch,
                                     std::vector<std::string>* warnings) {
  ImportOptions o = import_options(recipe);
  o.batch = kAnalysisBatch;
  if (const auto& moe = recipe.semantics.moe)
    o.batch = moe->group.value_or(recipe.batch.global.value_or(kAnalysisBatch));
  PARTITA_ASSIGN_OR_RETURN(ImportedModel imported, import_model(model, o, recipe));
  const std::vector<State>& states = imported.graph.states;
  bool statistics =
      std::any_of(states.begin(), states.end(), [](const State& s) { return s.kind == StateKind::kRunning; });
  if (statistics && recipe.batch.global) {  // they are of the whole batch, so its size matters where it is symbolic
    o.batch = recipe.batch.global;
    PARTITA_ASSIGN_OR_RETURN(imported, import_model(model, o, recipe));
  }
  if (warnings) *warnings = imported.warnings;
  // The search decides these; the analysis counts elements of the plain model.
  Recipe plain = recipe;
  plain.precision = Precision::kFp32, plain.attention = AttentionKernel::kFlash;
  plain.recompute = RecomputeMode::kNone, plain.pin.recompute.reset();
  PassContext context{.recipe = plain, .training = imported.training.value_or(TrainingSpec{})};
  PassOptions passes;
  passes.verify = false;
  PARTITA_ASSIGN_OR_RETURN(Graph graph, run_passes(training_pipeline(), imported.graph, context, passes));
  if (warnings) warnings->insert(warnings->end(), context.warnings.begin(), context.warnings.end());
  const WorkloadOptions options{.batch_statistics = recipe.semantics.batch_norm};
  PARTITA_ASSIGN_OR_RETURN(Workload w, analyse(graph, options));
  *batch = static_cast<int64_t>(w.samples);
  const bool grouped = recipe.semantics.moe && recipe.semantics.moe->group;  // then a run takes a group
  w.exported_batch = imported.info.any_batch && !grouped ? 0 : *batch;
  if (!w.whole_batches) {
    const auto any = imported.info.any_batch ? std::optional(kAnalysisBatch) : std::nullopt;
    PARTITA_ASSIGN_OR_RETURN(w.whole_runs, why_whole(model, recipe, graph, any));
  }
  return ReadModel{std::move(imported), options, std::move(w)};
}

// What programs of the model keep for backward, in the recipe's precision.
absl::Status count_kept(const Recipe& recipe, const ReadModel& read, Workload& w) {
  for (RecomputeMode mode : {RecomputeMode::kNone, RecomputeMode::kSelective}) {
    const bool flash = recipe.attention.value_or(AttentionKernel::kFlash) == AttentionKernel::kFlash;
    if (flash && mode == RecomputeMode::kSelective) continue;  // the same
    Recipe own = recipe;
    own.recompute = mode, own.pin.recompute.reset();
    PassContext context{.recipe = own, .training = read.imported.training.value_or(TrainingSpec{})};
    PassOptions passes;
    passes.verify = false;
    PARTITA_ASSIGN_OR_RETURN(const Graph graph, run_passes(training_pipeline(), read.imported.graph, context, passes));
    PARTITA_ASSIGN_OR_RETURN(const Workload program,
                             analyse(rematerialize(expand_composites(graph)).graph, read.options));
    PARTITA_RETURN_IF_ERROR(take_kept(w, program, mode == RecomputeMode::kNone));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Workload> analyse_model(const std::string& model, Recipe& recipe, int64_t* batch,
                                       std::vector<std::string>* warnings) {
  PARTITA_ASSIGN_OR_RETURN(ReadModel read, read_model(model, recipe, batch, warnings));
  return std::move(read.workload);
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
  if (!r.train_file.empty()) {
    PARTITA_ASSIGN_OR_RETURN(p->recipe, load_recipe(r.train_file));
  }
  if (r.precision) p->recipe.precision = *r.precision;
  for (const std::string& preset : r.like) PARTITA_RETURN_IF_ERROR(apply_preset(p->recipe, preset));
  for (const std::string& pin : r.pins) PARTITA_RETURN_IF_ERROR(apply_pin(p->recipe, pin));
  PARTITA_ASSIGN_OR_RETURN(p->library, load_profiles(r.profile_file));
  PARTITA_ASSIGN_OR_RETURN(p->cluster, load_cluster(r.cluster_file, p->library));
  auto start = std::chrono::steady_clock::now();
  int64_t batch = 1;
  PARTITA_ASSIGN_OR_RETURN(ReadModel read, read_model(r.model, p->recipe, &batch, &p->warnings));
  p->workload = std::move(read.workload);
  p->problem.workload = &p->workload;
  p->problem.cluster = &p->cluster;
  p->problem.options.precision = p->recipe.precision;
  p->problem.options.flash = p->recipe.attention.value_or(AttentionKernel::kFlash) == AttentionKernel::kFlash;
  p->problem.global_batch = p->recipe.batch.global.value_or(batch);
  p->problem.clip = p->recipe.clip_grad_norm.has_value();
  p->problem.compress = p->recipe.compress;
  p->problem.batch_statistics = p->recipe.semantics.batch_norm;
  p->options = search_options(p->recipe);
  p->options.time_limit = r.time_limit;
  bool published = false;
  if (r.published) {
    PARTITA_ASSIGN_OR_RETURN(const Space space,
                             layout_space(p->problem, p->options.pin, p->options.recompute, p->options.micro));
    published = space.fixed;
  }
  if (!published) {
    PARTITA_RETURN_IF_ERROR(count_kept(p->recipe, read, p->workload));
    p->problem.own_programs = true;
  }
  p->analysis_seconds = seconds_since(start);
  if (published) return p;
  if (p->workload.units.size() > kMostUnits) return p;
  // Programs are the same on other hardware: each layout is laid out once.
  using Bytes = absl::StatusOr<std::vector<double>>;
  auto known = std::make_shared<std::vector<std::pair<Layout, Bytes>>>();
  p->options.lay_out = [model = r.model, planning = p.get(), known](const Layout& l) -> Bytes {
    for (const auto& [layout, bytes] : *known) {
      if (layout == l) return bytes;
    }
    auto compiled = compile_model(layout_request(model, planning->recipe, planning->problem, l));
    std::vector<double> of_stages;
    if (compiled.ok()) {
      for (const runtime::Program& program : compiled->programs) of_stages.push_back(device_bytes(program));
    }
    Bytes bytes = compiled.ok() ? Bytes(std::move(of_stages)) : compiled.status();
    return known->emplace_back(l, std::move(bytes)).second;
  };
  return p;
}

absl::StatusOr<SearchOptions> options_with(const Planning& planning, const std::vector<std::string>& like,
                                           const std::vector<std::string>& pins) {
  Recipe recipe = planning.recipe;
  for (const std::string& preset : like) PARTITA_RETURN_IF_ERROR(apply_preset(recipe, preset));
  for (const std::string& pin : pins) PARTITA_RETURN_IF_ERROR(apply_pin(recipe, pin));
  SearchOptions o = search_options(recipe);
  o.time_limit = planning.options.time_limit;
  o.lay_out = planning.options.lay_out;
  return o;
}

namespace {

std::string text_at(const nlohmann::json& plan, const char* key) {
  const auto& in = plan.contains("inputs") ? plan["inputs"] : plan;
  return in.is_object() && in.contains(key) && in[key].is_string() ? in[key].get<std::string>() : "";
}

std::vector<std::string> texts_at(const nlohmann::json& plan, const char* key) {
  std::vector<std::string> out;
  if (!plan.contains("inputs") || !plan["inputs"].is_object() || !plan["inputs"].contains(key)) return out;
  for (const auto& text : plan["inputs"][key])
    if (text.is_string()) out.push_back(text.get<std::string>());
  return out;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Planning>> plan_again(const nlohmann::json& plan) {
  PlanRequest r;
  r.model = text_at(plan, "model"), r.train_file = text_at(plan, "train");
  r.cluster_file = text_at(plan, "cluster_path"), r.profile_file = text_at(plan, "profiles");
  r.like = texts_at(plan, "like"), r.pins = texts_at(plan, "pins");
  if (r.model.empty() || r.cluster_file.empty())
    return absl::FailedPreconditionError("the plan does not say which model and cluster it was made for");
  if (std::string trace = text_at(plan, "refined"); !trace.empty())
    return absl::FailedPreconditionError(
        cat("the plan was made with a profile that ", quote(trace),
            " corrected, and nobody wrote that down: plan again with --refined-profile FILE"));
  if (std::string name = text_at(plan, "precision"); !name.empty()) {
    const auto names = enum_names<Precision>();
    const auto at = std::find(names.begin(), names.end(), name);
    if (at == names.end())
      return absl::InvalidArgumentError(cat("plan: inputs.precision: unknown value ", quote(name)));
    r.precision = static_cast<Precision>(at - names.begin());
  }
  PARTITA_ASSIGN_OR_RETURN(std::unique_ptr<Planning> p, prepare_plan(r));
  if (p->cluster.text != text_at(plan, "cluster"))
    p->warnings.push_back(cat(quote(r.cluster_file), " has changed since the plan was made; it is taken as it is now"));
  return p;
}

absl::StatusOr<Layout> planned_layout(const Planning& planning, const nlohmann::json& plan) {
  SearchOptions options = planning.options;
  PARTITA_ASSIGN_OR_RETURN(options.pin, plan_pins(plan));
  CostModel model(planning.problem);
  PARTITA_ASSIGN_OR_RETURN(SearchResult found, search(model, options));
  return found.best ? found.best->layout : found.nearest->layout;
}

}  // namespace partita
