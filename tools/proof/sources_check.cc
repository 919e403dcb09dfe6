#include "tools/proof/sources_check.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <set>

#include "base/cat.h"
#include "base/checksum.h"
#include "base/mapped_file.h"
#include "base/quote.h"
#include "base/status.h"
#include "ir/recipe/lengths.h"
#include "ir/recipe/read_recipe.h"
#include "ir/text/print.h"
#include "partitioner/layout/batch_plan.h"
#include "runtime/files/safetensors.h"
#include "runtime/program/bundle_names.h"
#include "runtime/program/bundle_plans.h"
#include "tools/flow/data_settings.h"
#include "tools/flow/evaluation.h"
#include "tools/flow/training_graph.h"
#include "tools/flow/weight_files.h"

namespace partita {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

template <typename... Parts>
absl::Status differs(std::string_view what, const Parts&... parts) {
  return absl::AbortedError(cat(what, ": ", parts...));
}

// The ONNX node that a line of a graph's text comes from, or, of a value without one, the first that reads it.
std::string place_of(const Graph& graph, std::string_view line) {
  const size_t at = line.rfind(" origin ");
  int64_t number = -1;
  if (at != line.npos) {
    std::from_chars(line.data() + at + 8, line.data() + line.size(), number);
    if (number >= 0 && number < static_cast<int64_t>(graph.origins.size()))
      return cat(" (", quote(graph.origins[static_cast<size_t>(number)], 200), ")");
  }
  const size_t value = line.find('%');
  if (value == line.npos) return "";
  std::from_chars(line.data() + value + 1, line.data() + line.size(), number);
  for (const Node& node : graph.nodes) {
    if (std::find(node.inputs.begin(), node.inputs.end(), static_cast<ValueId>(number)) == node.inputs.end()) continue;
    return cat(" (read by ", node.op->name, ", ", quote(graph.origin(node), 200), ")");
  }
  return "";
}

// Without where states end, which says nothing that nodes do not.
std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (;;) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    lines.push_back(line.starts_with("state ") ? line.substr(0, line.rfind(" next %")) : line);
    if (end == text.npos) return lines;
    text.remove_prefix(end + 1);
  }
}

// Both are made by the same passes in the same order, so that equal programs are equal texts.
absl::Status compare_graphs(Graph expected, const Graph& found, std::string_view file) {
  expected.name = found.name;
  const std::string left = print(verifier::without_weights(expected)), right = print(verifier::without_weights(found));
  if (left == right) return absl::OkStatus();
  const std::vector<std::string_view> mine = lines_of(left), theirs = lines_of(right);
  const size_t k =
      static_cast<size_t>(std::mismatch(mine.begin(), mine.end(), theirs.begin(), theirs.end()).first - mine.begin());
  if (k == mine.size() && k == theirs.size()) return differs(file, "expected other nodes to end in its states");
  auto line = [k](const auto& lines) { return k < lines.size() ? lines[k] : std::string_view("nothing more"); };
  return differs(file, "expected, as model and recipe mean, ", quote(line(mine), 400), place_of(expected, line(mine)),
                 ", found ", quote(line(theirs), 400), place_of(found, line(theirs)));
}

// "data.shuffle" of "/data/shuffle".
std::string key_of(std::string path) {
  std::replace(path.begin(), path.end(), '/', '.');
  return path.substr(1);
}

// Both flattened: "/data/shuffle" and its value.
absl::Status compare_runs(const Json& expected, const Json& found) {
  for (const auto& [path, value] : expected.items()) {
    const Json other = found.value(path, Json());
    if (other != value) return differs(key_of(path), "expected ", value.dump(), ", found ", other.dump());
  }
  for (const auto& [path, value] : found.items()) {
    if (!expected.contains(path)) return differs(key_of(path), "expected no such key, found ", value.dump());
  }
  return absl::OkStatus();
}

// The recipe of the steps that the bundle is for, where there are steps of several lengths.
absl::Status take_length(int64_t length, int64_t samples, Recipe& recipe) {
  const std::vector<int64_t>& known = recipe.lengths.extents;
  if (known.empty() || length == known.back()) return absl::OkStatus();
  if (std::find(known.begin(), known.end(), length) == known.end())
    return differs("length", "expected one of the recipe's, found ", length);
  PARTITA_ASSIGN_OR_RETURN(
      recipe, recipe_of_length(recipe, recipe.batch.global.value_or(samples * length / known.back()), length));
  return absl::OkStatus();
}

// Sets the global batch that a layout decides, as reading the model does.
absl::Status take_batch(const SerialForm& form, int64_t samples, Recipe& recipe) {
  const int64_t total = form.graph_batch * form.micro_batches;
  if (total != samples)
    return differs("form", "expected ", samples, " samples a step, found ", form.graph_batch, " times ",
                   form.micro_batches);
  const std::vector<BatchPhase>& ramp = recipe.batch.ramp;
  if (std::any_of(ramp.begin(), ramp.end(), [&](const BatchPhase& p) { return p.samples == total; }))
    recipe.batch.global = total;
  if (recipe.batch.global && *recipe.batch.global != total)
    return differs("batch.global", "expected ", *recipe.batch.global, ", found ", total, " samples a step");
  if (recipe.batch.micro && recipe.batch.accumulation &&
      total % (*recipe.batch.micro * *recipe.batch.accumulation) != 0)
    return differs("batch", "expected a multiple of ", *recipe.batch.micro * *recipe.batch.accumulation,
                   " samples a step, found ", total);
  recipe.batch.global = total;
  if (form.sample_groups > 1 && recipe.semantics.batch_norm != BatchNormGroup::kReplica)
    return differs("semantics.batch_norm", "expected statistics of all samples of a run, found ", form.sample_groups,
                   " groups");
  recipe.pin.recompute = form.recompute, recipe.pin.recompute_blocks = form.recompute_blocks;
  return absl::OkStatus();
}

absl::Status compare_weights(const std::vector<InitialTensor>& weights, const WeightFiles& sources,
                             const runtime::BundleFiles& files) {
  PARTITA_ASSIGN_OR_RETURN(auto sealed, files.file(runtime::kInitialName));
  PARTITA_ASSIGN_OR_RETURN(const auto first, runtime::SafetensorsFile::open(std::move(sealed)));
  std::vector<std::byte> here;
  for (const InitialTensor& w : weights) {
    PARTITA_RETURN_IF_ERROR(sources.for_each_block(
        w, [&](std::span<const int64_t> offset, std::span<const int64_t> extent, std::span<const std::byte> block) {
          here.resize(block.size());
          absl::Status read = first.read(w.name, offset, extent, here);
          if (!read.ok() || std::equal(block.begin(), block.end(), here.begin())) return read;
          return differs(runtime::kInitialName, quote(w.name, 200), ": expected the model's values, found others");
        }));
  }
  return absl::OkStatus();
}

absl::StatusOr<Json> named(const std::string& path) {
  PARTITA_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
  return Json{
      {"file", fs::path(path).filename().string()}, {"bytes", file.size()}, {"sha256", sha256_hex(file.bytes())}};
}

// The files that a model's path stands for.
std::set<std::string> files_of_model(const std::string& model) {
  if (!fs::is_directory(model)) return {model};
  std::set<std::string> all;
  for (const auto& entry : fs::directory_iterator(model)) {
    if (entry.is_regular_file()) all.insert(entry.path().string());
  }
  return all;
}

absl::StatusOr<Json> name_sources(const Sources& sources, const WeightFiles& weights) {
  Json all = {{"model", Json::array()}, {"weights", Json::array()}};
  const std::set<std::string> model = files_of_model(sources.model);
  for (const std::string& path : model) {
    PARTITA_ASSIGN_OR_RETURN(all["model"].emplace_back(), named(path));
  }
  for (const std::string& path : weights.paths()) {
    if (model.count(path) > 0) continue;
    PARTITA_ASSIGN_OR_RETURN(all["weights"].emplace_back(), named(path));
  }
  if (!sources.train_file.empty()) {
    PARTITA_ASSIGN_OR_RETURN(all["recipe"], named(sources.train_file));
  }
  if (sources.precision) all["precision"] = enum_name(*sources.precision);
  return all;
}

// The model for all samples of a step, where runs of it would not make up their loss; as tools/flow reads it.
absl::StatusOr<std::shared_ptr<const ImportedModel>> for_step(ModelSource& source,
                                                              const std::shared_ptr<const ImportedModel>& exported,
                                                              const SerialForm& form, int64_t samples) {
  if (form.update_each) return exported;
  PARTITA_ASSIGN_OR_RETURN(const ModelSource::ForBatch taken, source.for_batch(exported, samples));
  return taken.model;
}

// The evaluation graph, made beside the training graph.
absl::Status compare_evaluation(ModelSource& source, const SerialForm& form, const PassContext& context,
                                const verifier::Bundle& bundle) {
  const bool expected = source.recipe().evaluate.has_value();
  if (expected != bundle.evaluation.has_value())
    return differs("evaluate", "expected ", expected ? "" : "no ", "evaluation programs, found ",
                   expected ? "none" : "some");
  if (!expected) return absl::OkStatus();
  PARTITA_ASSIGN_OR_RETURN(PassRun run, PassRun::create({}, {}));
  PARTITA_ASSIGN_OR_RETURN(Graph graph, evaluation_graph(source, form.bound_batch, form.graph_batch, context, run));
  return compare_graphs(std::move(graph), bundle.evaluation->serial, verifier::kEvaluationFiles.serial);
}

}  // namespace

absl::StatusOr<Json> check_sources(const Sources& sources, const runtime::BundleFiles& files,
                                   const verifier::Bundle& bundle) {
  Recipe recipe;
  if (!sources.train_file.empty()) {
    PARTITA_ASSIGN_OR_RETURN(recipe, load_recipe(sources.train_file));
  }
  if (sources.precision) recipe.precision = *sources.precision;
  PARTITA_ASSIGN_OR_RETURN(const SerialForm form, form_from_json(files.manifest().value("form", Json())));
  PARTITA_RETURN_IF_ERROR(take_length(runtime::length_of(files), bundle.samples, recipe));
  ModelSource source(sources.model, recipe);
  PARTITA_RETURN_IF_ERROR(take_batch(form, bundle.samples, recipe));
  PARTITA_ASSIGN_OR_RETURN(const auto exported, source.import(form.bound_batch));
  PARTITA_ASSIGN_OR_RETURN(const auto imported, for_step(source, exported, form, bundle.samples));
  PARTITA_ASSIGN_OR_RETURN(const int64_t run_samples, samples_of_run(imported->graph));
  if (run_samples != form.graph_batch)
    return differs("form.graph_batch", "expected ", run_samples, ", found ", form.graph_batch);
  if (!source.recipe().batch.global && !source.recipe().batch.accumulation && form.micro_batches != 1)
    return differs("batch.global", "expected the model's own ", run_samples, ", found ", bundle.samples);
  PARTITA_ASSIGN_OR_RETURN(PassRun run, PassRun::create({}, {}));
  PARTITA_ASSIGN_OR_RETURN(const TrainingGraph training, training_graph(source, imported, recipe, form, run));
  PARTITA_RETURN_IF_ERROR(compare_runs(run_settings(recipe, *training.graph).flatten(), bundle.run.flatten()));
  PARTITA_RETURN_IF_ERROR(compare_graphs(*training.graph, bundle.serial, verifier::kTrainingFiles.serial));
  PARTITA_RETURN_IF_ERROR(compare_evaluation(source, form, training.context, bundle));
  WeightFiles weights;
  const std::vector<InitialTensor> tensors = weights_of(*training.graph);
  PARTITA_RETURN_IF_ERROR(weights.open(tensors));
  PARTITA_RETURN_IF_ERROR(compare_weights(tensors, weights, files));
  return name_sources(sources, weights);
}

}  // namespace partita
