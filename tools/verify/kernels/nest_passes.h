// When a nest computes what: it goes over each row in passes, one for each depth of reductions, and what a pass needs
// again it computes again, or reads back from where it is kept.
//
//   softmax: pass 0 exp(x) and its sum, pass 1 exp(x) / sum: x is read in both passes, but for exp(x) that is kept
#pragma once

#include <vector>

#include "ir/nest/loop_nest.h"

namespace partita::verifier {

struct NestPasses {
  std::vector<int> level;      // per node: the pass in which it is first known
  std::vector<bool> wide;      // per node: it varies along the columns
  std::vector<int> computed;   // per node: the last pass in which it is computed, -1: never, count: after all of them
  std::vector<int> read_back;  // per node: the last pass in which it is read back, -1: never
  int count = 1;               // passes; then the values and stores of the row itself
};
NestPasses nest_passes(const LoopNest& nest);

// Whether an output of the nest may lie exactly over an input: each element is read, if at all, at the very point that
// overwrites it, and never after that, by whatever unit in whatever order.
bool overwrites_after_reading(const LoopNest& nest, int input, int output);

}  // namespace partita::verifier
