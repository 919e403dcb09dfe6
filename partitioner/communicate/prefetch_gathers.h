// Gathers of parameters that are stored in parts (ZeRO) move up in the one order of communication, so that what is
// needed next travels while what is there is computed with.
#pragma once

#include "partitioner/localize/local_program.h"

namespace partita {

// Starts each gather of a state as early as it can: as many bytes as a pass of the largest block gathers (or the
// largest gather outside of blocks), `blocks` times, wait for their first use at a time, and a sixteenth more, so that
// small tensors hold up nothing; with 0 each starts as it is wanted. Where backward gathers nothing again, what forward
// gathered is all there at its end, and takes no more memory then for having been early: it starts with its phase, but
// where other collectives would be waited for behind it. Nothing leaves its segment.
void prefetch_gathers(LocalProgram& program, int64_t blocks);

}  // namespace partita
