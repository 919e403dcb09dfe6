// How many threads a program is worth.
#pragma once

#include "runtime/program/program.h"

namespace partita::runtime {

// `threads`, or 1 where a program for processors is so small that waiting for one another, and fetching what another's
// cache holds, costs about what the others save. Told from the program alone, so that every run of it does the same.
int team_size(const Program& program, int threads);

}  // namespace partita::runtime
