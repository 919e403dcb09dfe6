// What a training step tells of itself: outputs, rates, and what it waited for.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "runtime/communicate/measured_communicator.h"
#include "runtime/execute/executor.h"
#include "runtime/execute/input_stage.h"
#include "runtime/metrics/metrics.h"
#include "runtime/metrics/rank_times.h"

namespace partita::runtime {

class StepMeter {
 public:
  // `measured`: what the executor's steps use, of several ranks; else null. All outlive this.
  StepMeter(const Executor& executor, Communicator* communicator, const MeasuredCommunicator* measured,
            const StepFigures& figures);

  // Around a step, on every rank; the second is a collective about once a second.
  void begin(const InputStage& inputs);
  absl::StatusOr<StepMetrics> end(int64_t step, const InputStage& inputs);

 private:
  using Clock = std::chrono::steady_clock;
  StepMetrics outputs(int64_t step) const;
  absl::Status add_waits(StepMetrics& m);

  const Executor& executor_;
  const MeasuredCommunicator* const measured_;
  const StepFigures figures_;
  std::map<GroupId, std::string> group_names_;
  std::optional<RankTimes> rank_times_;  // of several ranks on hosts: devices wait by themselves, unseen
  const Clock::time_point began_ = Clock::now();
  Clock::time_point step_began_ = began_;
  double stalled_ = 0;
  std::map<GroupId, double> waited_;  // before the step
};

}  // namespace partita::runtime
