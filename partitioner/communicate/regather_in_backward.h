// Sequence parallelism keeps activations in parts between forward and backward: what forward gathered over the tensor
// axis is gathered again where backward reads it, as Megatron does (Korthikanti et al., 2022), rather than kept whole.
#pragma once

#include <vector>

#include "partitioner/localize/local_program.h"

namespace partita {

// For gathers over some of `axes` (mesh axes along which sums are scattered) that stand in forward, and what is moved,
// converted or taken for this rank of them: backward makes them again, once, where it first reads one.
void regather_in_backward(LocalProgram& program, const std::vector<int>& axes);

}  // namespace partita
