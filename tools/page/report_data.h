// What the report page draws, as JSON: the plan itself and what follows from it.
#pragma once

#include <vector>

#include "nlohmann/json_fwd.hpp"
#include "partitioner/planner/report/planned_step.h"
#include "partitioner/planner/report/sweep.h"

namespace partita {

// {"plan", "explanation", "notes", "timeline", "traffic"}. Times of the timeline are integers, in units of its "tick"
// (seconds).
nlohmann::json report_data(const Plan& plan, const PlannedStep& step);

// A row for each change of the hardware; the first is the plan as it is.
nlohmann::json what_if_json(const std::vector<WhatIf>& changes);

}  // namespace partita
