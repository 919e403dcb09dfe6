// Which ops frameworks run as a chain of single operations: what the planner's cost model asks beside the formula.
#pragma once

#include "ir/op/op_def.h"

namespace partita {

// Whether training frameworks spell the op out, in f32, each operation a kernel that reads and writes memory: RMS norm
// had no kernel in PyTorch before 2.4, rotary positions have none.
bool is_composed(const OpDef& op);

}  // namespace partita
