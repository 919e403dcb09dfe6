// A plan in words.
#pragma once

#include <string>
#include <vector>

#include "partitioner/planner/report/plan.h"

namespace partita {

// In what training differs from that of the serial program, one sentence each.
std::vector<std::string> departures(const Plan& plan);
// Layout, step time, where the time and memory go, on some ten lines.
std::string summary(const Plan& plan);
// The same with units, stages, what binds, and the next-best plans.
std::string explanation(const Plan& plan);
// Why `other` is not the plan: part by part.
std::string comparison(const Plan& plan, const Plan::Other& other);

}  // namespace partita
