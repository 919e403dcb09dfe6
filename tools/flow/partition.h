// From a model file to the ranks' graphs: what compile, plan and train share.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "ir/pipeline/pass_run.h"
#include "partitioner/localize_stages.h"
#include "tools/flow/training_graph.h"

namespace partita {

// Seconds by phase of a flow.
class PhaseTimes {
 public:
  void lap(std::string phase) {
    const auto now = std::chrono::steady_clock::now();
    seconds_.emplace_back(std::move(phase), std::chrono::duration<double>(now - last_).count());
    last_ = now;
  }
  const std::vector<std::pair<std::string, double>>& seconds() const { return seconds_; }

 private:
  std::vector<std::pair<std::string, double>> seconds_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// What the steps of the flow have made, each of the one before.
struct Partition {
  ModelInHand model;
  TrainingGraph training;
  PlannedStages planned;
  LocalPrograms programs;  // none where `run` stopped before
};

struct PartitionOptions {
  std::optional<int64_t> ranks;  // unset: as the pins say, else 1
  bool keep_gradients = false;
  int64_t row_bytes = 1;  // as the target has it (TargetOptions::row_bytes)
};

// Whatever can be refused of a layout has been, once it returns. Warnings are the model's.
absl::StatusOr<Partition> partition_model(ModelSource& source, const Recipe& recipe, const PartitionOptions& options,
                                          PassRun& run, PhaseTimes& times);

}  // namespace partita
