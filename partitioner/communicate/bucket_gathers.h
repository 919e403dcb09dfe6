// Joins gathers of parameters that are stored in parts (ZeRO) into buckets: one collective for each block and pass, or
// for each block of the whole step.
#pragma once

#include "ir/recipe/bucket_sizes.h"
#include "partitioner/localize/local_program.h"

namespace partita {

// Gathers of one group and type that a block uses first, in one pass, are joined into one collective over
// several values, before its first use of any. Outside of blocks, those that are used one after the other are, up to
// the group's `sizes` together. Each value stays where it is. In levels, buckets of the first gathers come before those
// of what they brought.
void bucket_gathers(LocalProgram& program, const BucketSizes& sizes);

}  // namespace partita
