// A pass is one free function from graph to graph. What it may need beside the graph:
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "ir/graph/graph.h"
#include "ir/graph/training_spec.h"
#include "ir/recipe/recipe.h"

namespace partita {

struct PassContext {
  Recipe recipe;
  TrainingSpec training;        // what the file itself says of training; empty for a plain forward graph
  int64_t micro_batches = 1;    // runs of the graph in one step
  bool accumulate = false;      // gradients come in several parts, from several runs or micro-batches of one
  int64_t ordered_parts = 0;    // with `accumulate`: that a rank's sums are made of as a balanced tree; 0: in any order
  bool update_each = false;     // every run is an optimizer step of its own (pin schedule: pipedream)
  int64_t expert_parts = 1;     // into which the matrices that rows choose from are divided (the expert axis)
  bool keep_gradients = false;  // keep "grad/NAME" among the outputs
};

}  // namespace partita
