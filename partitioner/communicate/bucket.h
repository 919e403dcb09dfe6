// Joins collectives into buckets, one collective over several values. At the place of the last, those whose results can
// wait: reductions of gradients (all-reduces, or the reduce-scatters of ZeRO), with fewer latencies, while the first
// still start as backward runs. And those that stand together: the exchanges of q, k and v before attention and of
// their gradients after it, the sums that batch norm's backward needs.
#pragma once

#include "ir/recipe/bucket_sizes.h"
#include "partitioner/localize/local_program.h"

namespace partita {

// Joins collectives inside of a stage, of one kind, group and type, whose results are first computed with in a later
// segment; or which are ready before anything computes with one of them, with no heavy work between; in the order of
// the nodes, up to the group's `sizes` together. Gathers of stored parameters are bucket_gathers' (bucket_gathers.h).
void bucket_collectives(LocalProgram& program, const BucketSizes& sizes);

}  // namespace partita
