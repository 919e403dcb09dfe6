// A graph that no ranks share out, as the program of one rank.
#pragma once

#include <cstdint>

#include "partitioner/localize/local_program.h"

namespace partita {

// Every input, state and output lies whole on the rank.
LocalProgram whole_program(Graph graph, int64_t samples_per_step, int64_t micro_batches);

}  // namespace partita
