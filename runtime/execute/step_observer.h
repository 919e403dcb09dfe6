// Who looks at a rank's memory between its steps.
#pragma once

#include "absl/status/status.h"
#include "runtime/program/program.h"

namespace partita::runtime {

class Executor;

// One for all ranks of a process: each calls on its own thread, at the same time as others. An error ends the run.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  // A run through the schedule begins.
  virtual void begin(const Executor& executor) = 0;
  // Before and after each step. What a collective leaves is there after the step that waits for it.
  virtual absl::Status before(const Executor& executor, const Step& step, const ScheduleEntry& entry) = 0;
  virtual absl::Status after(const Executor& executor, const Step& step, const ScheduleEntry& entry) = 0;
};

}  // namespace partita::runtime
