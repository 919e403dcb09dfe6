// What importing a model takes and makes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "frontend/onnx/onnx_model.h"
#include "ir/graph/graph.h"
#include "ir/graph/training_spec.h"

namespace partita {

struct ImportOptions {
  std::map<std::string, int64_t> bind;       // symbolic dimension -> size
  std::optional<int64_t> batch;              // size of data inputs' symbolic first dimensions that `bind` does not give
  std::vector<std::string> trainable;        // globs over initializer names; not empty: only those are trained
  std::vector<std::string> frozen;           // globs; wins over trainable
  std::map<std::string, std::string> names;  // initializer's name in the file -> name of its state
  bool training = true;                      // false: Dropout is the identity, batch norms use running statistics
  bool batch_norm_training = false;          // normalize by the batch where the file says training_mode 0, too
  int64_t seed = 0;                          // of random ops that have none of their own
  std::map<std::string, Literal> fixed;      // graph inputs that are constants of this compilation
  std::set<std::string> outputs;  // values of the file's graph that are outputs besides, where there are such
};

struct ImportInfo {
  int64_t ir_version = 0;
  OnnxOpsets opsets;
  std::string producer;
  int64_t nodes = 0;  // of the main graph
  std::map<std::string, int>
      ops;  // kind ("Add", "com.microsoft::BiasGelu") -> nodes converted, function bodies included
  std::vector<std::string> expanded;  // operators that went through their function body
  int64_t trained_elements = 0;
  bool any_batch = false;  // ImportOptions::batch decided how many samples a run takes
};

struct ImportedModel {
  // Inputs: the data inputs. States: the initializers (kParameter, kFrozen, kRunning) in the file's order, and
  // "partita.step" where random ops need it. Small initializers that are never trained (integers, masks, scalars,
  // tables) are constants. Everything unused is left out, but for inputs.
  Graph graph;
  std::optional<TrainingSpec> training;  // where the file says how to train
  std::vector<std::string> warnings;
  ImportInfo info;
};

}  // namespace partita
