// Joins gathers of parameters that are stored in parts (ZeRO-3) into buckets: one collective for each block and pass.
#pragma once

#include "partitioner/localize/local_program.h"

namespace partita {

// Gathers of one group and type that a repeated block uses first, in one pass, are joined into one collective over
// several values, before its first use of any. Outside of blocks, those that are used one after the other are, up to
// `bytes` together. Each value stays where it is.
void bucket_gathers(LocalProgram& program, int64_t bytes);

}  // namespace partita
