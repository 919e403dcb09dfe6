// Bundles in memory for the verifier's tests.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/recipe/recipe.h"
#include "tests/support/temp_folder.h"
#include "tools/verify/bundle/bundle.h"

namespace partita {

struct SampleLayout {
  int64_t ranks = 2;
  std::vector<std::string> like, pins;
  bool keep_gradients = false, evaluate = false;
  std::string gpu = {};                     // empty: a CPU's program
  std::optional<Precision> precision = {};  // in place of the recipe's
};

// Compiles the model of a folder (model.onnx and train.yaml).
absl::StatusOr<verifier::Bundle> sample_bundle(const std::string& folder, const SampleLayout& layout);
// Writes a small transformer into the folder (`flags` of `partita model gpt`): 4 samples a run of the graph, 16 a step,
// so that a step has 4 micro-batches.
std::string made_model(const TempFolder& folder, const std::string& flags = "--vocab 64");
std::string describe(const SampleLayout& layout);

}  // namespace partita
