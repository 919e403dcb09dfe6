// The part of a report page's data about what the plan's ranks send each other.
#pragma once

#include "nlohmann/json_fwd.hpp"
#include "partitioner/planner/report/planned_step.h"

namespace partita {

// {"axes": what a rank sends along each and waits for, "matrices": bytes from rank to rank, or from block of ranks to
// block of ranks where there are many, then the first ranks one by one besides}.
nlohmann::json traffic_json(const Plan& plan, const PlannedStep& step);

}  // namespace partita
