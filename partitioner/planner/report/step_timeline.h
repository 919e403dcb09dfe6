// A planned step over time: which part of which pass runs when, on which stream.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

#include "partitioner/planner/report/planned_step.h"

namespace partita {

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
Stream stream_of(TimeKind part);

// A part of a pass, or of what follows the last one (`pass` is none of the timeline's events then: -1).
struct Slice {
  TimeKind part;
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

// Seconds of a step that each rank of a stage computes or waits, by what they go to (those of all causes are the
// step's), and that what it exchanges runs beside its compute.
struct StageSeconds {
  Breakdown spent;
  double hidden_gathers = 0, hidden_reduce = 0, hidden_sums = 0, hidden_copies = 0;
};
StageSeconds stage_seconds(const PlannedStep& step, const StepTimeline& timeline, size_t stage);

// Bytes that a rank of the stage keeps for backward, from each of those seconds on.
std::vector<std::pair<double, double>> kept_activations(const PlannedStep& step, const Timeline& passes, size_t stage);

}  // namespace partita
