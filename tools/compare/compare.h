// `partita compare`: the first value of a training step that is not what it must be, by running two bundles of one
// model, or one bundle, on the same samples.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/program/bundle_files.h"
#include "runtime/train/trainer.h"
#include "tools/verify/bundle/bundle.h"

namespace partita {

// A bundle as one side of a comparison.
struct ComparedBundle {
  std::string name;  // as messages call it
  verifier::Bundle bundle;
  runtime::TrainOptions train;
};

struct CompareOptions {
  int64_t steps = 2;  // of training
  // In place of a comparison: the first value that is not finite, of the step that ends such a run. `train` says which
  // checkpoint to go on from, if any, and `steps` counts from the start of training; -1: all that there are.
  bool nonfinite = false;
  runtime::DivergenceOptions ends = {};
  int64_t first_step = 0;  // of that checkpoint
  std::string dump;  // not empty: tensors of the first step under ONNX value names (safetensors), as the other side
};

struct Comparison {
  bool differs = false;
  std::string text;                     // what was found, in lines
  std::vector<std::string> nodes = {};  // one of these is at fault, as describe_node() has it; none: a state or input
};

// Runs each side, and holds every value that it has in memory against what the reference evaluator makes of the
// operands that it has (step_check.h); states before the first step and samples must be the same on both.
// InvalidArgument where they are of two models, take other numbers of samples, or do not compute the serial program by
// choice (compress, pipedream); the data's and the runtime's own errors.
absl::StatusOr<Comparison> compare(const ComparedBundle& a, const std::optional<ComparedBundle>& b,
                                   const CompareOptions& options);
// The same in a process of its own that can harm nothing (tools/proof/confined.h). Aborted where it crashes.
absl::StatusOr<Comparison> compare_apart(const ComparedBundle& a, const std::optional<ComparedBundle>& b,
                                         const CompareOptions& options);

}  // namespace partita
