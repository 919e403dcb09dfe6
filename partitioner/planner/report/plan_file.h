// The text of a plan, both ways.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"
#include "partitioner/planner/report/plan.h"

namespace partita {

// The whole text with a final newline; same plan, same bytes.
std::string plan_text(const Plan& plan);
nlohmann::json plan_json(const Plan& plan);

// InvalidArgument naming the key, what is expected there and what was found.
absl::StatusOr<Plan> parse_plan(const std::string& text);
// The same of a file, whose name begins the message; NotFound.
absl::StatusOr<Plan> read_plan(const std::string& path);

}  // namespace partita
