// Gathers of parameters that are stored in parts (ZeRO-3) move up in the one order of communication, so that what is
// needed next travels while what is there is computed with.
#pragma once

#include "partitioner/localize/local_program.h"

namespace partita {

// Starts each gather of a state as early as it can: no more bytes of gathered states than the largest has wait for
// their first use at a time. Nothing leaves its segment.
void prefetch_gathers(LocalProgram& program);

}  // namespace partita
