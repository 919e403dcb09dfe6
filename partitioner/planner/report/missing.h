// What a layout lacks of memory, in words.
#pragma once

#include <string>

#include "partitioner/planner/search/candidate.h"

namespace partita {

// "needs 12.3 GB more on stage 0 of 4: 97.3 GB (parameters 32.0, …) of 85.0 GB".
std::string explain_missing(const Candidate& candidate);
std::string gigabytes(double bytes);

}  // namespace partita
