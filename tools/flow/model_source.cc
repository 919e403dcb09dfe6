#include "tools/flow/model_source.h"

#include <algorithm>
#include <set>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "partitioner/layout/batch_plan.h"
#include "partitioner/prepare/moe_capacity.h"
#include "partitioner/prepare/resize_dimensions.h"
#include "partitioner/stages/separable_samples.h"
#include "passes/forward/attach_loss.h"
#include "passes/forward/join_teacher.h"

namespace partita {

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
  for (const LossRecipe& loss : recipe.loss) o.outputs.insert({loss.output, loss.with, loss.logit_scale});
  for (const auto& [name, metric] : recipe.metrics) o.outputs.insert(metric.output);
  o.outputs.erase("");
  return o;
}

namespace {

// The teacher that a loss of the recipe names, beside the model: as for inference, and frozen. The losses of a recipe
// have one teacher between them.
absl::Status add_teacher(const Recipe& recipe, std::optional<int64_t> batch, ImportedModel& model) {
  std::string path;
  std::set<std::string> outputs;
  for (const LossRecipe& loss : recipe.loss) {
    if (!path.empty() && !loss.teacher.empty() && loss.teacher != path)
      return absl::InvalidArgumentError(cat("loss.teacher: expected one teacher of all losses, found ",
                                            quote(path, 200), " and ", quote(loss.teacher, 200)));
    if (loss.teacher.empty()) continue;
    path = loss.teacher;
    const bool one = loss.output.empty() && !model.graph.outputs.empty();
    outputs.insert(!loss.teacher_output.empty() ? loss.teacher_output
                   : one                        ? model.graph.outputs[0].name
                                                : loss.output);
  }
  if (path.empty()) return absl::OkStatus();
  ImportOptions options;
  options.bind = recipe.bind;
  options.batch = batch;
  options.frozen = {"*"};
  options.training = false;
  auto teacher = import_onnx(path, options);
  if (!teacher.ok()) return with_context(teacher.status(), "loss.teacher");
  PARTITA_ASSIGN_OR_RETURN(model.graph, join_teacher(model.graph, std::move(teacher->graph), outputs));
  for (const std::string& warning : teacher->warnings) model.warnings.push_back(cat("loss.teacher: ", warning));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const ImportedModel>> ModelSource::import(std::optional<int64_t> batch, bool training) {
  for (const Import& known : imports_) {
    const bool same_batch = known.batch == batch || !known.model->info.any_batch;
    if (known.training == training && same_batch) return known.model;
  }
  ImportOptions options = import_options(recipe_);
  options.batch = batch;
  options.training = training;
  PARTITA_ASSIGN_OR_RETURN(ImportedModel model, import_onnx(path_, options));
  PARTITA_RETURN_IF_ERROR(add_teacher(recipe_, batch, model));
  if (recipe_.semantics.moe_dropless) PARTITA_RETURN_IF_ERROR(check_dropless(model.graph));
  if (recipe_.semantics.moe) {
    PARTITA_ASSIGN_OR_RETURN(model.graph, set_moe_capacity(model.graph, *recipe_.semantics.moe));
  }
  imports_.push_back({batch, training, std::make_shared<const ImportedModel>(std::move(model))});
  return imports_.back().model;
}

absl::StatusOr<std::shared_ptr<const ImportedModel>> ModelSource::resized(
    const std::shared_ptr<const ImportedModel>& model, int64_t samples) {
  for (const Resized& known : resized_) {
    if (known.from == model && known.samples == samples) return known.to;
  }
  PARTITA_ASSIGN_OR_RETURN(const int64_t run, samples_of_run(model->graph));
  ImportedModel now = *model;
  PARTITA_ASSIGN_OR_RETURN(now.graph,
                           resize_dimensions(model->graph, {.changes = {{"samples", run, samples}}, .inputs = 0}));
  resized_.push_back({model, std::make_shared<const ImportedModel>(std::move(now)), samples});
  return resized_.back().to;
}

absl::StatusOr<ModelSource::ForBatch> ModelSource::for_batch(const std::shared_ptr<const ImportedModel>& model,
                                                             int64_t global) {
  if (recipe_.semantics.moe) return ForBatch{.model = model, .together = false, .warnings = {}};
  for (const auto& [known, batch, made] : for_batch_) {
    if (known == model && batch == global) return made;
  }
  PARTITA_ASSIGN_OR_RETURN(ForBatch made, choose_for_batch(model, global));
  for_batch_.emplace_back(model, global, made);
  return made;
}

namespace {

bool takes_batch_statistics(const Graph& graph) {
  return std::any_of(graph.states.begin(), graph.states.end(),
                     [](const State& s) { return s.kind == StateKind::kRunning && s.next != kNoValue; });
}

}  // namespace

absl::StatusOr<ModelSource::ForBatch> ModelSource::choose_for_batch(const std::shared_ptr<const ImportedModel>& model,
                                                                    int64_t global) {
  ForBatch out{.model = model, .together = false, .warnings = {}};
  PARTITA_ASSIGN_OR_RETURN(const int64_t run, samples_of_run(model->graph));
  if (global % run != 0 || global == run) return out;
  const PassContext context{.recipe = recipe_, .training = model->training.value_or(TrainingSpec{})};
  PARTITA_ASSIGN_OR_RETURN(const Graph graph, attach_loss(model->graph, context));
  const SamplesOfLoss loss = samples_of_loss(graph);
  const bool added =
      !recipe_.loss.empty() && recipe_.loss[0].reduction == Reduction::kSum;  // the runs' losses, as said
  if (loss.is == LossOverSamples::kMean || (loss.is == LossOverSamples::kSummed && added)) return out;
  const std::string runs = cat("a step is ", global / run, " runs of the graph, ", run, " samples each"),
                    node = loss.node == kNoNode ? "" : graph.origin(graph.nodes[static_cast<size_t>(loss.node)]),
                    advice = cat("export the model with a batch of ", global,
                                 " or a symbolic batch dimension, or say batch: {global: ", run, "}");
  const bool statistics = takes_batch_statistics(graph) && recipe_.semantics.batch_norm == BatchNormGroup::kGlobal;
  const auto all = resized(model, global);
  if (loss.is == LossOverSamples::kTogether && check_dropless(model->graph).ok()) {
    if (!all.ok()) {
      return absl::InvalidArgumentError(cat("batch.global: ", runs,
                                            ", and the loss is no mean over samples, for they meet in ", node,
                                            ": the mean of the runs' losses is not that of ", global, " samples; ",
                                            advice, " (", all.status().message(), ")"));
    }
    out.warnings.push_back(cat("the loss is of all samples together, which meet in ", node, ": the graph takes ",
                               global, " samples at once in place of the ", run,
                               " that it was exported with, and numbers that were made of these ", run,
                               " (a division by len(x), say) stay as they are: if there are any, ", advice));
    out.model = *all, out.together = true;
  } else if ((loss.is == LossOverSamples::kCounted || loss.is == LossOverSamples::kSummed) && all.ok() && !statistics) {
    out.model = *all;
  } else if (loss.is == LossOverSamples::kSummed) {
    out.warnings.push_back(cat(runs,
                               ", whose losses are averaged, and the loss is a sum over samples: for that of all ",
                               global, " say loss: {reduction: sum}, or ", advice));
  } else if (loss.is == LossOverSamples::kCounted) {
    const std::string why = all.ok() ? "batch norms take the statistics of a run" : std::string(all.status().message());
    out.warnings.push_back(
        cat(runs, ", whose losses are averaged: exact where as many targets count in each (", why, "); ", advice));
  } else {
    out.warnings.push_back(cat(runs, ", whose losses are averaged: ", node,
                               " may make of them another loss than that of all samples; ", advice));
  }
  return out;
}

bool ModelSource::same(const GraphKey& a, const GraphKey& b) {
  auto fields = [](const GraphKey& k) {
    const PassContext& c = k.context;
    return std::tuple(k.model, k.sample_groups, k.recompute, k.recompute_blocks, c.micro_batches, c.accumulate,
                      c.ordered_parts, c.update_each, c.expert_parts, c.keep_gradients);
  };
  return fields(a) == fields(b);
}

}  // namespace partita
