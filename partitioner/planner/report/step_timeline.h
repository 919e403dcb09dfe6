// What `simulate` and `report` show of a plan: its step part by part and stream by stream, and what its ranks send each
// other. All of it stands in plan.json, so that neither needs the model.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"
#include "partitioner/layout/layout.h"
#include "partitioner/planner/cost/simulate.h"
#include "partitioner/planner/cost/step_parts.h"
#include "partitioner/planner/cost/traffic.h"

namespace partita {

struct PlannedStep {
  struct Stage {
    int64_t first_rank = 0;
    Layout::StageAxes axes;
    double memory = 0, activations = 0;  // bytes of a rank at most; activations: of them what is kept for backward
  };
  // Nodes of one kind; ranks are numbered through them.
  struct Nodes {
    int64_t nodes = 1, devices_per_node = 1;
    std::string device;
  };
  std::vector<Stage> stages;
  std::vector<Nodes> nodes;
  Simulation simulation;
  StepParts parts;
  PlanTraffic traffic;
  double predicted_seconds = 0;

  int64_t ranks() const { return traffic.ranks(); }
  int64_t stage_of(int64_t rank) const;
};

// Adds what read_step reads to a plan that has its stages.
void write_step(nlohmann::json& plan, const StepParts& parts, const PlanTraffic& traffic, const Cluster& cluster);
// InvalidArgument where the plan lacks it (older ones do) or says what cannot be.
absl::StatusOr<PlannedStep> read_step(const nlohmann::json& plan);

// "stage 1, data 0, tensor 3; node 1, device 3 (A100-80GB)"
std::string rank_name(const PlannedStep& step, int64_t rank);

// What runs at the same time on a rank.
enum class Stream : uint8_t {
  kCompute,
  kTensor,
  kContext,
  kExpert,
  kStatistics,
  kGathers,
  kReduce,
  kRelayout,
  kUpdate,
  kCopies,
  kHost,
  kWait,
};
inline constexpr size_t kStreams = static_cast<size_t>(Stream::kWait) + 1;
std::string_view stream_name(Stream stream);
Stream stream_of(StepPart part);

// A part of a pass, or of what follows the last one (`pass` is none of the timeline's events then: -1).
struct Slice {
  StepPart part;
  int64_t pass = -1;          // of Timeline::events
  double start = 0, end = 0;  // seconds
};

// A step of all stages: the replayed passes, and what comes after them.
struct StepTimeline {
  Timeline passes;
  std::vector<std::vector<Slice>> slices;  // [stage], of one rank; those of a stream do not overlap
  double seconds = 0;                      // of the step
};
StepTimeline step_timeline(const PlannedStep& step);

// Bytes that a rank of the stage keeps for backward, from each of those seconds on.
std::vector<std::pair<double, double>> kept_activations(const PlannedStep& step, const Timeline& passes, size_t stage);

}  // namespace partita
