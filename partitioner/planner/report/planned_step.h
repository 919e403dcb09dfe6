// What `simulate` and `report` show of a plan: its step part by part and stream by stream, and what its ranks send each
// other. All of it stands in plan.json, so that neither needs the model.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "partitioner/layout/layout.h"
#include "partitioner/planner/report/plan.h"

namespace partita {

struct PlannedStep {
  struct Stage {
    int64_t first_rank = 0;
    Layout::StageAxes axes;
    double memory = 0, activations = 0;  // bytes of a rank at most; activations: of them what is kept for backward
  };
  std::vector<Stage> stages;
  std::vector<Plan::Nodes> nodes;
  Simulation simulation;
  StepTimes times;
  PlanTraffic traffic;
  double predicted_seconds = 0;

  int64_t ranks() const { return traffic.ranks(); }
  int64_t stage_of(int64_t rank) const;
};

// InvalidArgument where the plan lacks it (older ones do) or says what cannot be.
absl::StatusOr<PlannedStep> planned_step(const Plan& plan);

// "stage 1, data 0, tensor 3; node 1, device 3 (A100-80GB)"
std::string rank_name(const PlannedStep& step, int64_t rank);

}  // namespace partita
