// Joins collectives whose results can wait into buckets: reductions of gradients (all-reduces, or the reduce-scatters
// of ZeRO), and the gathers of updated parameters. One collective over several values, at the place of the last: fewer
// latencies, and those of gradients still start while backward runs.
#pragma once

#include "partitioner/local_program.h"

namespace partita {

// Only collectives inside of a stage whose results are first computed with in a later segment are joined: those of one
// kind, group and type, in the order of the nodes, up to `bytes` together.
void bucket_collectives(LocalProgram& program, int64_t bytes);

}  // namespace partita
