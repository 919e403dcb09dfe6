// From a model file to the training graph that ranks share out between them: the first two steps of the flow.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "frontend/onnx_import.h"
#include "ir/pipeline/pass_run.h"
#include "ir/recipe/recipe.h"
#include "nlohmann/json.hpp"
#include "partitioner/layout/batch_plan.h"
#include "partitioner/layout/layout.h"
#include "passes/rewrite/pass.h"
#include "tools/flow/model_source.h"

namespace partita {

// A model as it was read, what the user asks for, and how the ranks divide a step's samples.
struct ModelInHand {
  Recipe recipe;  // with the global batch, where the layout or the model decides it
  Layout layout;
  std::shared_ptr<const ImportedModel> imported;
  BatchPlan batch;
  std::vector<std::string> warnings;
};

// `recipe`: the source's own, but for what layouts decide. `ranks`: unset: as the pins say, else 1. InvalidArgument
// where the layout, the batch and the model do not fit each other; errors of reading the model.
absl::StatusOr<ModelInHand> read_model(ModelSource& source, Recipe recipe, std::optional<int64_t> ranks);

// What the layout decides of the serial program's form. It changes nothing of what a step computes but by the recipe's
// own word (semantics.batch_norm: replica, pin schedule: pipedream).
struct SerialForm {
  std::optional<int64_t> bound_batch;  // the size of symbolic first dimensions
  int64_t graph_batch = 1;             // samples of a run of the graph
  int64_t micro_batches = 1;           // runs in a step
  int64_t sample_groups = 1;           // of a run, that batch norms take their statistics of by themselves
  int64_t expert_parts = 1;
  int64_t ordered_parts = 0;
  bool accumulate = false, update_each = false, keep_gradients = false;  // as in PassContext
  std::optional<RecomputeMode> recompute;                                // in place of the recipe's
  std::vector<RecomputeMode> recompute_blocks;                           // likewise
};

nlohmann::json to_json(const SerialForm& form);
// InvalidArgument where it is none.
absl::StatusOr<SerialForm> form_from_json(const nlohmann::json& json);

struct TrainingGraph {
  std::shared_ptr<const Graph> graph;
  PassContext context;  // of the passes that made it
  SerialForm form;
  int64_t statistic_samples = 0;  // that one batch statistic is of, by semantics.batch_norm; 0: all of a run
  int64_t capacity_samples = 0;   // that share an expert's capacity, by semantics.moe; 0: as the model has it
};

// Runs the graph passes (passes/pipeline.h) on the model as it was read.
absl::StatusOr<TrainingGraph> training_graph(ModelSource& source, std::shared_ptr<const ImportedModel> imported,
                                             const Recipe& recipe, const SerialForm& form, PassRun& run);
// The same in the form that the model's layout and batch ask for.
absl::StatusOr<TrainingGraph> training_graph(ModelSource& source, const ModelInHand& model, bool keep_gradients,
                                             PassRun& run);

// The graph, with the blocks that a tensor axis may divide marked where the recipe's `reproducible` has some.
Graph with_tensor_blocks(Graph graph, const Recipe& recipe);

// How many samples a run takes where the layout wants one, else as the recipe says.
std::optional<int64_t> batch_to_bind(const ModelSource& source, const Recipe& recipe, const Layout& layout);

}  // namespace partita
