// Gathers of parameters that are stored in parts (ZeRO-3) move up in the one order of communication, so that what is
// needed next travels while what is there is computed with.
#pragma once

#include "partitioner/local_program.h"

namespace partita {

// Starts each gather of a state as early as it can: no more bytes of gathered states than the largest has wait for
// their first use at a time. Nothing leaves its segment.
void prefetch_gathers(LocalProgram& program);

// The most bytes of gathered states that are alive at once, from the start of the gather to the last reader, in other
// orders of dimensions too.
int64_t gathered_bytes(const Graph& graph);

}  // namespace partita
