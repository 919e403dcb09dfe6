// A model file, and what its recipe says of reading it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "frontend/onnx_import.h"
#include "ir/recipe/recipe.h"
#include "passes/rewrite/pass.h"

namespace partita {

// What a recipe says about reading the model.
ImportOptions import_options(const Recipe& recipe);

// Reads the file when a model of it is asked for, and keeps what it read and what the graph passes made of it: a search
// compiles one model under many layouts. Not for several threads.
class ModelSource {
 public:
  // `path`: file or folder. Of `recipe` all counts but pins, the batch, data and evaluation, which layouts decide.
  ModelSource(std::string path, Recipe recipe) : path_(std::move(path)), recipe_(std::move(recipe)) {}

  const std::string& path() const { return path_; }
  const Recipe& recipe() const { return recipe_; }
  // The size of symbolic first dimensions of data inputs, as the recipe has it.
  std::optional<int64_t> batch() const { return import_options(recipe_).batch; }

  // The model with its experts' capacity as semantics.moe says, `batch` samples in a run where the file leaves that
  // open. Errors are import_onnx()'s, InvalidArgument where the recipe asks for what the model is not.
  absl::StatusOr<std::shared_ptr<const ImportedModel>> import(std::optional<int64_t> batch, bool training = true);

  // A model that import() gave as its exporter would have written it for so many samples at a time. InvalidArgument
  // where they cannot be followed through the graph.
  absl::StatusOr<std::shared_ptr<const ImportedModel>> resized(const std::shared_ptr<const ImportedModel>& model,
                                                               int64_t samples);

  // What takes the `global` batch of a step: the model itself, in runs whose losses are averaged, where that is the
  // loss over all samples, and under semantics.moe, whose groups have losses of their own; else the model for all of
  // them at once. InvalidArgument where neither can be.
  struct ForBatch {
    std::shared_ptr<const ImportedModel> model;
    bool together = false;  // samples meet in the loss
    std::vector<std::string> warnings;
  };
  absl::StatusOr<ForBatch> for_batch(const std::shared_ptr<const ImportedModel>& model, int64_t global);

  // A training graph, by all that it depends on beside the recipe. One that is not kept yet is made, and kept.
  struct GraphKey {
    std::shared_ptr<const ImportedModel> model;
    int64_t sample_groups = 1;  // of a run, that batch norms take their statistics of by themselves
    PassContext context;        // but for its recipe
    std::optional<RecomputeMode> recompute;
    std::vector<RecomputeMode> recompute_blocks;
  };
  template <typename Make>
  absl::StatusOr<std::shared_ptr<const Graph>> graph(const GraphKey& key, Make make) {
    for (const auto& [known, graph] : graphs_) {
      if (same(known, key)) return graph;
    }
    absl::StatusOr<Graph> made = make();
    if (!made.ok()) return made.status();
    return graphs_.emplace_back(key, std::make_shared<const Graph>(*std::move(made))).second;
  }

 private:
  struct Import {
    std::optional<int64_t> batch;
    bool training = true;
    std::shared_ptr<const ImportedModel> model;
  };
  struct Resized {
    std::shared_ptr<const ImportedModel> from, to;
    int64_t samples = 0;
  };
  static bool same(const GraphKey& a, const GraphKey& b);
  absl::StatusOr<ForBatch> choose_for_batch(const std::shared_ptr<const ImportedModel>& model, int64_t global);

  std::string path_;
  Recipe recipe_;
  std::vector<Import> imports_;
  std::vector<Resized> resized_;
  std::vector<std::tuple<std::shared_ptr<const ImportedModel>, int64_t, ForBatch>> for_batch_;
  std::vector<std::pair<GraphKey, std::shared_ptr<const Graph>>> graphs_;
};

}  // namespace partita
