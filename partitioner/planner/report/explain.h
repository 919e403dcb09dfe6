// A plan in words.
#pragma once

#include <string>

#include "partitioner/planner/report/plan.h"

namespace partita {

// "12.3 ms", "4.5 s".
std::string time_text(double seconds);
// Layout, step time, where the time and memory go, on some ten lines.
std::string summary(const Plan& plan);
// The same with units, stages, what binds, and the next-best plans.
std::string explanation(const Plan& plan);
// Why `other` is not the plan: part by part.
std::string comparison(const Plan& plan, const Plan::Other& other);

}  // namespace partita
