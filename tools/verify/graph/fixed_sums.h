// What is asked for of sums (train.yaml's reproducible).
#pragma once

#include <cstdint>

namespace partita::verifier {

struct FixedSums {
  int64_t samples = 0;  // parts of a step's samples, over which sums are balanced binary trees; 0: sums have any order
  int64_t tensor = 1;   // blocks of an inner dimension, over which sums are trees likewise; 1: nothing divides them
};

}  // namespace partita::verifier
