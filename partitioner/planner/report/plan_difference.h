// Two plans held against each other.
#pragma once

#include <string>

#include "partitioner/planner/report/plan.h"

namespace partita {

// What differs, in words, a line each: the step, the layout, memory, price, what the step's time is made of. Empty
// where the plans are equal.
std::string plan_difference(const Plan& a, const Plan& b);
// Every value that differs, under the path of its keys, in a stable order. What follows from the rest is left out:
// candidates, traffic, the parts of each time.
std::string all_differences(const Plan& a, const Plan& b);

}  // namespace partita
