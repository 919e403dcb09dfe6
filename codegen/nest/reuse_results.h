// What a later pass over a row needs again: computed once more from memory, or read back from an output of the nest.
#pragma once

#include "ir/nest/loop_nest.h"

namespace partita {

// Fills nest.kept of a scheduled nest. A value that takes an exponential or the like, or several loads, is read back
// from where it is stored anyway, or is put for the time being where a later pass will store its own result.
//
//   softmax: the exponentials of pass 1 wait in the output for their sum, and are divided by it in pass 2
void keep_results(LoopNest& nest);

}  // namespace partita
