// An event-driven replay of one step of a pipeline: every stage runs its operations in its schedule's order, each as
// soon as what it needs has come.
#pragma once

#include <string>
#include <vector>

#include "partitioner/layout/pipeline_schedule.h"

namespace partita {

struct StageTimes {
  double forward = 0, backward = 0, weight = 0;  // backward: input gradients and, but for zero_bubble, weights' too
};

struct Simulation {
  std::vector<std::vector<StageTimes>> chunks;  // [stage][chunk]
  int64_t micro_batches = 1;
  int64_t overlapped = 1;  // micro-batches that take turns: they go through the stages as one
  PipelineSchedule schedule = PipelineSchedule::k1f1b;
  // A message to a stage beside leaves in the last `send_waited` seconds of its operation and arrives `send` seconds
  // after it; where the one before is still on the way to that stage, it follows it.
  double send = 0, send_waited = 0;
};

// Groups that take turns as micro-batches, of `micro_batches_of_group` each on the average.
double micro_batches_of_group(const Simulation& s);
Simulation in_groups(Simulation s);

struct Event {
  StageWork kind;
  int stage = 0, chunk = 0;
  int64_t micro_batch = 0;  // or group that takes turns
  double start = 0, end = 0;
};

// What an operation's result takes to the stage that goes on with it.
struct SendEvent {
  StageWork kind;  // of the operation that sends
  int from = 0, to = 0, chunk = 0;
  int64_t micro_batch = 0;
  double start = 0, end = 0;
};

struct Timeline {
  double seconds = 0;
  std::vector<double> busy;             // per stage
  std::vector<int64_t> most_in_flight;  // per stage: micro-batch chunks whose values are kept at once
  std::vector<Event> events;            // where asked for
  std::vector<SendEvent> sends;         // likewise
};

Timeline simulate(const Simulation& s, bool keep_events = false);

}  // namespace partita
