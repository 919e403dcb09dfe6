// What a training step tells of itself: outputs, rates, and what it waited for.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/communicate/measured_communicator.h"
#include "runtime/execute/executor.h"
#include "runtime/metrics/metrics.h"
#include "runtime/metrics/rank_times.h"
#include "runtime/train/evaluator.h"
#include "runtime/train/step_programs.h"

namespace partita::runtime {

class StepMeter {
 public:
  // `measured`: what the executor's steps use, of several ranks; else null. All outlive this. `figures`: of steps of
  // this executor's program.
  StepMeter(const Executor& executor, Communicator* communicator, const MeasuredCommunicator* measured,
            const StepFigures& figures);

  // Around a step, what runs it having been chosen, on every rank; the second is a collective about once a second.
  void begin(const StepPrograms& programs);
  absl::StatusOr<StepMetrics> end(int64_t step, const StepPrograms& programs);
  // Of a step that another run took: everything that is named, without a value.
  StepMetrics unmeasured(int64_t step) const;

 private:
  using Clock = std::chrono::steady_clock;
  // From now on steps are this executor's. `flops` of one of them; unset: as `figures` say, by their samples.
  void follow(const Executor& executor, std::optional<double> flops);
  StepMetrics outputs(int64_t step) const;
  absl::Status add_waits(StepMetrics& m);

  const Executor* executor_;
  const double samples_;  // of a step that `figures_` are of
  const MeasuredCommunicator* const measured_;
  const StepFigures figures_;
  double flops_ = 0;  // of a step
  std::vector<NamedMetric> named_;
  std::map<GroupId, std::string> group_names_;
  std::optional<RankTimes> rank_times_;  // of several ranks on hosts: devices wait by themselves, unseen
  const Clock::time_point began_ = Clock::now();
  Clock::time_point step_began_ = began_;
  double stalled_ = 0;
  std::map<GroupId, double> waited_;  // before the step
};

}  // namespace partita::runtime
