// Sums in a fixed order. Those over micro-batches as balanced trees (step "accumulate_tree") keep the sums of branches
// between the lowest level, which waits in the step's result, and the last one, which is the result.
#pragma once

#include <cstdint>

#include "runtime/program/program.h"

namespace partita::runtime {

// Levels between, of a tree over `terms`, a power of two.
int64_t tree_levels_between(int64_t terms);
// What a program's sums take for them, beside its regions.
int64_t branch_bytes(const Program& program);

// Whether a step adds up floats of several ranks. Where param `ordered` is 1 it does so as a balanced binary tree over
// the ranks, with every back end.
bool adds_up_ranks(const Step& step);

}  // namespace partita::runtime
