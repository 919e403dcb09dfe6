// The target-independent half of scheduling a nest: loop order, merging of loops, which loop the lanes run along, units
// of work.
#pragma once

#include "ir/nest/loop_nest.h"

namespace partita {

// `nest.sizes` are loops in the order of the domain; `column` tells the column loops. Drops loops of one point, puts
// columns last, merges loops that every access steps through alike, chooses lanes and units. Folds keep their access
// strides; their extent and operand size follow from the units, `fold_units` at most. `on_gpu`: it is run there.
void schedule(LoopNest& nest, std::vector<bool> column, int64_t fold_units, bool on_gpu);

// True where `output` may have the memory of `input`: each point of output is written after the last read of that point
// of input, and nothing else of it.
bool may_share(const LoopNest& nest, int input, int output);

}  // namespace partita
