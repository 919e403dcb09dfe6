// plan.json (tools/schema/plan.json): the chosen layout as pins, what is predicted of it, and what lost.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"
#include "partitioner/planner/search/search.h"

namespace partita {

inline constexpr int kPlanVersion = 1;

// Where a plan comes from, so that explain can plan again.
struct PlanInputs {
  std::string model, train, cluster;  // paths as given; cluster: its text
  std::string cluster_path;
  std::string profiles, precision;  // as given beside them; empty: none
  std::vector<std::string> like, pins;
  std::string refined;  // the trace that its profiles were corrected by, where nobody wrote them down
};

nlohmann::json plan_json(const Problem& problem, CostModel& model, const SearchResult& result, const Candidate& chosen,
                         const PlanInputs& inputs);
nlohmann::json candidate_json(const Problem& problem, const Candidate& candidate, const Candidate* best);

// The whole text with a final newline; same plan, same bytes.
std::string plan_text(const nlohmann::json& plan);
// InvalidArgument naming the file and what is wrong with it.
absl::StatusOr<nlohmann::json> read_plan(const std::string& path);
// The plan's pins.
absl::StatusOr<PinRecipe> plan_pins(const nlohmann::json& plan);
// How its gradients travel; nullopt where the plan does not say.
absl::StatusOr<std::optional<Compression>> plan_compression(const nlohmann::json& plan);
// Bytes that the program of each stage may take: a device's memory without the reserve. None where the plan was
// written though it does not fit.
absl::StatusOr<std::vector<double>> plan_room(const nlohmann::json& plan);
// What simulate replays.
absl::StatusOr<Simulation> plan_simulation(const nlohmann::json& plan);

}  // namespace partita
