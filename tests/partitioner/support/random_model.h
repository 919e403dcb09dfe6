// Random training graphs for property tests of the transformation: layers drawn from what models are made of, with
// loss, backward and update.
#pragma once

#include <string>
#include <vector>

#include "ir/graph/graph.h"

namespace partita {

struct RandomModel {
  std::vector<int> layers;  // what each layer is, taken modulo the number of kinds
  int64_t micro_batches = 1;
  bool accumulate = false;
  int optimizer = 0;  // 0 sgd, 1 momentum, 2 adamw, 3 lamb, 4 rmsprop, 5 adafactor, 6 muon
  bool clip = false, mask = false, squared = false;
  int64_t classes = 8;  // and rows of the embedding
  int64_t hidden = 16;  // of the MLPs
};

RandomModel random_model(uint64_t seed);
// Whether a layer computes with sums over all samples of a run, which micro-batches would cut.
bool joins_samples(const RandomModel& model);
// In f64. Batch 4, sequences of 4; data inputs "ids" (i64) or "x", and "target".
Graph training_graph(const RandomModel& model);
std::string describe(const RandomModel& model);

}  // namespace partita
