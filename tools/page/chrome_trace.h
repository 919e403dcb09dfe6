// A plan's predicted step as a trace that Perfetto and chrome://tracing open.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "partitioner/planner/report/step_timeline.h"

namespace partita {

// The ranks that a trace is to have: "" the first of each stage (all of a stage do the same at the same time), "all",
// or "0,8,16..19". InvalidArgument where one is not the plan's.
absl::StatusOr<std::vector<int64_t>> traced_ranks(const PlannedStep& step, const std::string& asked);

// The Trace Event Format's JSON object: a process for each of `ranks` (ascending), with a thread for the passes, one
// for each stream, and one for each rank that it sends to or receives from; arrows from sends to receives where both
// ranks are there; a counter of the memory. InvalidArgument for more than `most_events`.
absl::StatusOr<std::string> chrome_trace(const PlannedStep& step, const StepTimeline& timeline,
                                         const std::vector<int64_t>& ranks, int64_t most_events = 5'000'000);

}  // namespace partita
