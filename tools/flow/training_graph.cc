#include "tools/flow/training_graph.h"

#include <algorithm>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "partitioner/layout/fixed_parts.h"
#include "partitioner/layout/pinned_layout.h"
#include "partitioner/prepare/group_statistics.h"
#include "partitioner/prepare/tensor_blocks.h"
#include "passes/forward/initialize.h"
#include "passes/pipeline.h"
#include "tools/flow/lost_dropout.h"

namespace partita {
namespace {

// A pattern that is mistyped lets weight decay at what it was to spare.
void warn_of_idle_patterns(const Recipe& recipe, const Graph& graph, std::vector<std::string>& warnings) {
  if (!recipe.optimizer) return;
  auto warn = [&](std::string_view key, const std::vector<std::string>& globs) {
    for (const std::string& glob : globs) {
      if (std::none_of(graph.states.begin(), graph.states.end(),
                       [&](const State& s) { return s.kind == StateKind::kParameter && glob_match(glob, s.name); }))
        warnings.push_back(cat("optimizer.", key, ": no parameter has a name that matches ", quote(glob)));
    }
  };
  warn("no_decay", recipe.optimizer->no_decay);
  warn("adamw.match", recipe.optimizer->adamw.match);
  for (size_t k = 0; k < recipe.optimizer->groups.size(); ++k)
    warn(cat("groups[", k, "].match"), recipe.optimizer->groups[k].match);
}

// A model that ends in probabilities, as Keras's classifiers do, beside a loss that takes logits.
void warn_of_probabilities(const Recipe& recipe, const Graph& graph, std::vector<std::string>& warnings) {
  for (const LossRecipe& loss : recipe.loss) {
    const std::string_view applied = loss.kind == LossKind::kCrossEntropy    ? "softmax"
                                     : loss.kind == LossKind::kBceWithLogits ? "sigmoid"
                                                                             : "";
    for (const GraphOutput& out : graph.outputs) {
      const Node* made = graph.producer(out.value);
      if ((!loss.output.empty() && out.name != loss.output) || made == nullptr || made->op->name != applied) continue;
      const std::string& logits = graph.values[made->inputs[0]].name;
      warnings.push_back(cat("loss: ", enum_name(loss.kind), " takes logits and applies the ", applied, " itself, and ",
                             quote(out.name, 100), " is what ", graph.origin(*made), " makes: it is applied twice; ",
                             logits.empty() ? "export the model without it"
                                            : cat("take what it is made of: output: ", quote(logits, 100))));
    }
  }
}

// Stages whose expert axes differ leave whole what rows choose from: the graph is divided before it is cut.
int64_t expert_parts(const Layout& layout) {
  const bool alike = std::all_of(layout.stages.begin(), layout.stages.end(),
                                 [&](const Layout::StageAxes& s) { return s.expert == layout.stages[0].expert; });
  return layout.stages.empty() ? layout.expert : alike ? layout.stages[0].expert : 1;
}

// Batch norms of semantics.batch_norm: replica take their statistics of the samples that a rank has at once.
int64_t sample_groups(const Recipe& recipe, const BatchPlan& batch) {
  return recipe.semantics.batch_norm == BatchNormGroup::kReplica ? batch.batch_ranks * batch.parts : 1;
}

// The model for all samples of a step, which is computed in the parts that sums over samples are made of.
absl::Status take_parts(ModelSource& source, const Recipe& recipe, ModelInHand& m) {
  PARTITA_ASSIGN_OR_RETURN(const int64_t run, samples_of_run(m.imported->graph));
  const int64_t global = global_batch(run, recipe, m.layout);
  PARTITA_RETURN_IF_ERROR(fix_parts(recipe, global, m.layout));
  if (run == global) return absl::OkStatus();
  auto all = source.resized(m.imported, global);
  if (!all.ok())
    return absl::InvalidArgumentError(cat("reproducible: the graph takes ", run, " samples at a time, and the step's ",
                                          global, " at once are needed; export the model with a batch of ", global,
                                          ", or with a symbolic batch dimension (", all.status().message(), ")"));
  m.imported = *std::move(all);
  return absl::OkStatus();
}

// The model for the samples of a step, where runs of it would not make up their loss. A run of PipeDream's is a step of
// its own.
absl::Status take_batch(ModelSource& source, const Recipe& recipe, ModelInHand& m) {
  if (recipe.reproducible) return take_parts(source, recipe, m);
  if (m.layout.schedule == PipelineSchedule::kPipedream) return absl::OkStatus();
  PARTITA_ASSIGN_OR_RETURN(const int64_t run, samples_of_run(m.imported->graph));
  const int64_t global = global_batch(run, recipe, m.layout);
  PARTITA_ASSIGN_OR_RETURN(const ModelSource::ForBatch taken, source.for_batch(m.imported, global));
  m.warnings.insert(m.warnings.end(), taken.warnings.begin(), taken.warnings.end());
  const bool in_parts = taken.model != m.imported && !taken.together;
  if (in_parts && m.layout.micro_batch == 0) m.layout.micro_batch = micro_batch_of_runs(run, global, m.layout);
  m.imported = taken.model;
  return absl::OkStatus();
}

// Of a global batch and the number of micro-batches that a rank makes of its part, the micro-batch.
absl::Status accumulate(const BatchRecipe& batch, Layout& layout) {
  if (!batch.global || !batch.accumulation || layout.micro_batch > 0) return absl::OkStatus();
  const int64_t parts = *batch.accumulation * layout.sample_ranks();
  if (*batch.global % parts != 0)
    return absl::InvalidArgumentError(cat("batch.accumulation: a global batch of ", *batch.global, " is not ",
                                          *batch.accumulation, " equal micro-batches on each of ",
                                          layout.sample_ranks(), " data-parallel ranks; expected a multiple of ",
                                          parts));
  layout.micro_batch = *batch.global / parts;
  return absl::OkStatus();
}

}  // namespace

Graph with_tensor_blocks(Graph graph, const Recipe& recipe) {
  if (!recipe.reproducible || recipe.reproducible->tensor == 1) return graph;
  return mark_tensor_blocks(graph, recipe.reproducible->tensor, recipe.reproducible->samples);
}

nlohmann::json to_json(const SerialForm& form) {
  nlohmann::json json = {{"graph_batch", form.graph_batch},      {"micro_batches", form.micro_batches},
                         {"sample_groups", form.sample_groups},  {"expert_parts", form.expert_parts},
                         {"accumulate", form.accumulate},        {"update_each", form.update_each},
                         {"keep_gradients", form.keep_gradients}};
  if (form.ordered_parts > 0) json["ordered_parts"] = form.ordered_parts;
  if (form.bound_batch) json["bound_batch"] = *form.bound_batch;
  if (form.recompute) json["recompute"] = enum_name(*form.recompute);
  for (RecomputeMode mode : form.recompute_blocks) json["recompute_blocks"].push_back(enum_name(mode));
  return json;
}

absl::StatusOr<SerialForm> form_from_json(const nlohmann::json& json) {
  try {
    SerialForm form{.graph_batch = json.at("graph_batch").get<int64_t>(),
                    .micro_batches = json.at("micro_batches").get<int64_t>(),
                    .sample_groups = json.at("sample_groups").get<int64_t>(),
                    .expert_parts = json.at("expert_parts").get<int64_t>(),
                    .accumulate = json.at("accumulate").get<bool>(),
                    .update_each = json.at("update_each").get<bool>(),
                    .keep_gradients = json.at("keep_gradients").get<bool>()};
    if (json.contains("bound_batch")) form.bound_batch = json["bound_batch"].get<int64_t>();
    if (json.contains("ordered_parts")) form.ordered_parts = json["ordered_parts"].get<int64_t>();
    bool known = true;
    auto mode_of = [&](const nlohmann::json& name) {
      const auto mode = parse_enum<RecomputeMode>(name.get<std::string>());
      known = known && mode;
      return mode.value_or(RecomputeMode::kNone);
    };
    if (json.contains("recompute")) form.recompute = mode_of(json["recompute"]);
    if (json.contains("recompute_blocks")) {
      for (const nlohmann::json& name : json["recompute_blocks"]) form.recompute_blocks.push_back(mode_of(name));
    }
    if (known) return form;
  } catch (const nlohmann::json::exception&) {
  }
  return absl::InvalidArgumentError(
      cat("form: expected what the layout decides of the serial program, found ", quote(json.dump(), 400)));
}

// PipeDream's micro-batch is an optimizer step: a run of the graph, where its batch dimension can be bound.
std::optional<int64_t> batch_to_bind(const ModelSource& source, const Recipe& recipe, const Layout& layout) {
  const std::optional<int64_t> micro = recipe.pin.micro_batch ? recipe.pin.micro_batch : recipe.batch.micro;
  if (layout.schedule == PipelineSchedule::kPipedream && micro) return *micro * layout.sample_ranks();
  const auto& moe = recipe.semantics.moe;
  return moe && moe->group ? source.batch() : recipe.batch.global;
}

absl::StatusOr<ModelInHand> read_model(ModelSource& source, Recipe recipe, std::optional<int64_t> ranks) {
  ModelInHand m;
  PARTITA_ASSIGN_OR_RETURN(m.layout, pinned_layout(recipe, ranks, m.warnings));
  if (!recipe.batch.global && recipe.batch.micro && recipe.batch.accumulation)
    recipe.batch.global = *recipe.batch.micro * *recipe.batch.accumulation * m.layout.sample_ranks();
  PARTITA_RETURN_IF_ERROR(accumulate(recipe.batch, m.layout));
  PARTITA_ASSIGN_OR_RETURN(m.imported, source.import(batch_to_bind(source, recipe, m.layout)));
  const ImportedModel& model = *m.imported;
  // A global batch that the recipe leaves open becomes that of the model as it was exported.
  if (recipe.semantics.moe && !recipe.batch.global && !recipe.batch.accumulation) {
    PARTITA_ASSIGN_OR_RETURN(recipe.batch.global, samples_of_run(model.graph));
  }
  m.warnings.insert(m.warnings.end(), model.warnings.begin(), model.warnings.end());
  for (std::string& w : lost_dropout(source.path(), model.graph)) m.warnings.push_back(std::move(w));
  warn_of_idle_patterns(recipe, model.graph, m.warnings);
  warn_of_probabilities(recipe, model.graph, m.warnings);
  PARTITA_RETURN_IF_ERROR(take_batch(source, recipe, m));
  PARTITA_ASSIGN_OR_RETURN(m.batch, plan_batch(m.imported->graph, recipe, m.layout));
  m.recipe = std::move(recipe);
  return m;
}

absl::StatusOr<TrainingGraph> training_graph(ModelSource& source, std::shared_ptr<const ImportedModel> imported,
                                             const Recipe& recipe, const SerialForm& form, PassRun& run) {
  TrainingGraph out;
  out.form = form;
  if (form.sample_groups > 1) out.statistic_samples = form.graph_batch / form.sample_groups;
  if (recipe.semantics.moe) out.capacity_samples = form.graph_batch;
  out.context = {.recipe = recipe,
                 .training = imported->training.value_or(TrainingSpec{}),
                 .micro_batches = form.micro_batches,
                 .accumulate = form.accumulate,
                 .ordered_parts = form.ordered_parts,
                 .update_each = form.update_each,
                 .expert_parts = form.expert_parts,
                 .keep_gradients = form.keep_gradients};
  auto make = [&]() -> absl::StatusOr<Graph> {
    Graph graph = imported->graph;
    if (form.sample_groups > 1) graph = group_samples(graph, form.sample_groups);
    PARTITA_ASSIGN_OR_RETURN(graph, initialize(graph, out.context));
    PARTITA_RETURN_IF_ERROR(run.start(graphs_of(graph)));
    PARTITA_ASSIGN_OR_RETURN(graph, run_passes(graph_passes(PassUse::kTraining), std::move(graph), out.context, run));
    return with_tensor_blocks(std::move(graph), recipe);
  };
  PARTITA_ASSIGN_OR_RETURN(out.graph, source.graph({imported, form.sample_groups, out.context, recipe.pin.recompute,
                                                    recipe.pin.recompute_blocks},
                                                   make));
  return out;
}

absl::StatusOr<TrainingGraph> training_graph(ModelSource& source, const ModelInHand& model, bool keep_gradients,
                                             PassRun& run) {
  const BatchPlan& batch = model.batch;
  const SerialForm form{.bound_batch = batch_to_bind(source, model.recipe, model.layout),
                        .graph_batch = batch.graph_batch,
                        .micro_batches = batch.micro_batches,
                        .sample_groups = sample_groups(model.recipe, batch),
                        .expert_parts = expert_parts(model.layout),
                        .ordered_parts = batch.fixed_parts > 0 && batch.parts > 1 ? batch.parts : 0,
                        .accumulate = batch.micro_batches * batch.parts > 1,
                        .update_each = model.layout.schedule == PipelineSchedule::kPipedream,
                        .keep_gradients = keep_gradients,
                        .recompute = model.recipe.pin.recompute,
                        .recompute_blocks = model.recipe.pin.recompute_blocks};
  return training_graph(source, model.imported, model.recipe, form, run);
}

}  // namespace partita
