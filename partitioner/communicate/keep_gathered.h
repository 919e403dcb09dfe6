// What backward computes with first is what forward computed with last: where parameters are gathered for each pass
// (ZeRO-3), backward reads what the end of forward gathered.
#pragma once

#include "partitioner/localize/local_program.h"

namespace partita {

// Gathers of backward go, in the order of their first use, where forward made the same, as many bytes as backward would
// have at hand at once: what it computes with and what waits (prefetch_gathers.h). Nothing of a pipeline's stages:
// other micro-batches come between a forward part and its backward part.
void keep_gathered(LocalProgram& program, int64_t prefetch_blocks);

}  // namespace partita
