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
  // `measured`: what the executor's steps use, of several ranks; else null. All outlive this. `figures`: of steps of
  // this executor's program.
  StepMeter(const Executor& executor, Communicator* communicator, const MeasuredCommunicator* measured,
            const StepFigures& figures);

  // From now on steps are this executor's.
  void follow(const Executor& executor);
  // Around a step, on every rank; the second is a collective about once a second.
  void begin(const InputStage& inputs);
  absl::StatusOr<StepMetrics> end(int64_t step, const InputStage& inputs);

 private:
  using Clock = std::chrono::steady_clock;
  StepMetrics outputs(int64_t step) const;
  absl::Status add_waits(StepMetrics& m);

  const Executor* executor_;
  const double samples_;  // of a step that `figures_` are of
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
