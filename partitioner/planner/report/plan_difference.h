// Two plans held against each other.
#pragma once

#include <string>

#include "partitioner/planner/report/plan.h"

namespace partita {

// Their differences, one a line, in a stable order, after the change of the step; empty where they are equal. What
// follows from the rest is left out: candidates, traffic, the parts of each time.
std::string plan_difference(const Plan& a, const Plan& b);

}  // namespace partita
