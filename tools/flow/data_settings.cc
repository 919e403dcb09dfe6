#include "tools/flow/data_settings.h"

#include "ir/recipe/write_recipe.h"
#include "passes/recognize/shifted_inputs.h"
#include "runtime/data/data_config_json.h"

namespace partita {
namespace {

// Labels that are the tokens themselves, for the graph compares them with the next ones. What the recipe's loss takes
// as its target is compared as it is, whatever else the graph does with it.
std::vector<std::string> shifted_labels(const Recipe& recipe, const Graph& graph) {
  std::vector<std::string> names = shifted_inputs(graph);
  for (const LossRecipe& loss : recipe.loss) {
    if (loss.kind != LossKind::kOutput) std::erase(names, loss.target);
  }
  return names;
}

nlohmann::json fault_settings(const RunRecipe& run) {
  nlohmann::json out = {{"on_nonfinite", enum_name(run.on_nonfinite)}};
  if (const auto& spike = run.loss_spike)
    out["loss_spike"] = {{"factor", spike->factor}, {"window", spike->window}, {"action", enum_name(spike->action)}};
  const TimeoutRecipe& t = run.timeout;
  for (const auto& [phase, seconds] : {std::pair{"start", t.start},
                                       {"data", t.data},
                                       {"step", t.step},
                                       {"collective", t.collective},
                                       {"checkpoint", t.checkpoint},
                                       {"evaluation", t.evaluation}}) {
    if (seconds) out["timeout"][phase] = *seconds;
  }
  return out;
}

}  // namespace

nlohmann::json run_settings(const Recipe& recipe, const Graph& training) {
  const std::vector<std::string> shifted = shifted_labels(recipe, training);
  const uint64_t seed = static_cast<uint64_t>(recipe.seed);
  nlohmann::json data = runtime::to_json(data_settings(recipe.data.value_or(DataRecipe{}), seed, shifted));
  if (!recipe.data || !recipe.data->kind) data.erase("kind");  // by the file that --data names
  nlohmann::json run = {{"data", data}, {"seed", seed}, {"recipe", step_keys(recipe)}};
  if (recipe.reproducible) {
    const auto& [samples, tensor] = *recipe.reproducible;
    run["reproducible"] = samples;
    if (tensor > 1) run["reproducible"] = {{"samples", samples}, {"tensor", tensor}};
  }
  if (!(recipe.run == RunRecipe{})) run["run"] = fault_settings(recipe.run);
  for (const BatchPhase& phase : recipe.batch.ramp) run["ramp"].push_back({phase.from, phase.samples});
  if (!recipe.lengths.extents.empty()) run["lengths"] = {{recipe.lengths.dimension, recipe.lengths.extents}};
  if (recipe.evaluate) {
    run["evaluate"] = {{"every", recipe.evaluate->every},
                       {"batches", recipe.evaluate->batches.value_or(-1)},
                       {"data", runtime::to_json(data_settings(recipe.evaluate->data, seed, shifted))}};
  }
  return run;
}

runtime::DataConfig data_settings(const DataRecipe& d, uint64_t seed, const std::vector<std::string>& shifted_inside) {
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
  out.shifted_inside = shifted_inside;
  out.check_ids = d.check_ids;
  out.documents = d.documents;
  out.end_of_document = d.end_of_document;
  out.pad_token = d.pad_token;
  out.ignore_label = d.ignore_label;
  out.lengths = d.lengths;
  out.images = d.images;
  out.workers = d.workers.value_or(0);
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

}  // namespace partita
