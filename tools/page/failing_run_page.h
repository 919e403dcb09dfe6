// What a run with failures comes to, as text.
#pragma once

#include <cstdint>
#include <string>

#include "partitioner/planner/failures/failing_run.h"

namespace partita {

// `begin`: seconds since 1970 (UTC); `price_per_hour`: of all devices of the plan, 0 where it is not known.
std::string failing_run_text(const FailingRun& run, const ExpectedRun& expected, int64_t begin, double price_per_hour);

}  // namespace partita
