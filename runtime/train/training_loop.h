// The steps of one rank, one after the other: what trainer.h's functions run.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "runtime/audit/recording_communicator.h"
#include "runtime/communicate/collective.h"
#include "runtime/communicate/measured_communicator.h"
#include "runtime/execute/executor.h"
#include "runtime/launch/rank_watch.h"
#include "runtime/metrics/metrics.h"
#include "runtime/train/trainer.h"

namespace partita::runtime {

class TrainingLoop {
 public:
  virtual ~TrainingLoop() = default;
  // From the first values or a checkpoint on, to the end. The errors of train_rank().
  virtual absl::Status run(MetricsSink* sink) = 0;
};

// What it works with, which outlives it.
struct LoopParts {
  Executor& executor;
  Communicator* communicator;            // null: one rank
  Communicator* of_steps;                // the executor's
  const MeasuredCommunicator* measured;  // the one beneath it, of several ranks; else null
  RecordingCommunicator* recorder;       // the executor's itself, where steps are audited; else null
  const TrainOptions& options;
  int threads;
  RankWatch& watch;
};
std::unique_ptr<TrainingLoop> make_training_loop(const LoopParts& parts);

}  // namespace partita::runtime
