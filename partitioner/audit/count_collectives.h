// What the one transformation inserted: the collectives of a rank's program, by kind and by what they move.
#pragma once

#include <vector>

#include "partitioner/localize/local_program.h"

namespace partita {

struct CountedCollective {
  CollectiveOp kind;
  bool backward = false;
  bool gradient = false;    // ends in an update: nothing of forward or backward reads it
  bool activation = false;  // float, depends on parameters, and is more than one number
  int64_t elements = 0;     // of the operand, on this rank
  int32_t origin = -1;
};

std::vector<CountedCollective> count_collectives(const LocalProgram& program);

}  // namespace partita
