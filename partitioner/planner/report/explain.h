// A plan in words.
#pragma once

#include <string>
#include <vector>

#include "nlohmann/json_fwd.hpp"

namespace partita {

// In what training differs from that of the serial program, one sentence each.
std::vector<std::string> departures(const nlohmann::json& plan);
// Layout, step time, where the time and memory go, on some ten lines.
std::string summary(const nlohmann::json& plan);
// The same with units, stages, what binds, and the next-best plans.
std::string explanation(const nlohmann::json& plan);
// Why `other` (a candidate, priced) is not the plan: part by part.
std::string comparison(const nlohmann::json& plan, const nlohmann::json& other);
// Differences of two plans, one a line, in a stable order; empty where they are equal.
std::string plan_difference(const nlohmann::json& a, const nlohmann::json& b);

}  // namespace partita
