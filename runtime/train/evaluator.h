// Runs the evaluation program of a rank: the loss over a data set, with the states as training has them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/metric_output.h"
#include "runtime/communicate/collective.h"
#include "runtime/communicate/flag_exchange.h"
#include "runtime/execute/executor.h"
#include "runtime/execute/input_stage.h"
#include "runtime/metrics/metrics.h"

namespace partita::runtime {

struct EvaluateOptions {
  LoadedPrograms programs;  // none: no evaluation
  DataConfig data;
  int64_t every = 0;     // training steps
  int64_t batches = -1;  // global batches each time; -1: as many whole ones as the data have
  // Early stop: after this many evaluations in a row without a loss below the best by more than min_gain; 0: never.
  int64_t patience = 0;
  double min_gain = 0;
};

// An output of a program that a recipe's metric is.
struct NamedMetric {
  std::string output;
  MetricOutput metric;
};
std::vector<NamedMetric> named_metrics(const Program& program);

class Evaluator {
 public:
  const DataSource& data() const { return inputs_->source(); }
  // Samples behind the last whole batch, where the data say how many batches there are.
  int64_t left_out() const { return options_.batches < 0 ? data().samples_per_epoch() % data().global_batch() : 0; }
  // Collective. `training` outlives it. The data's errors; InvalidArgument for less than one batch.
  static absl::StatusOr<std::unique_ptr<Evaluator>> open(const EvaluateOptions& options, const Executor& training,
                                                         Communicator* communicator, int threads);

  bool is_due(int64_t steps_taken) const { return options_.every > 0 && steps_taken % options_.every == 0; }
  // Adds the metrics of an evaluation to those of a step, without their values.
  void name_metrics(StepMetrics& step) const;
  // Collective: the mean loss over the batches, the same on all ranks, and the metrics that name_metrics() named, as
  // this rank has them: of the batches the mean, the sum or the last, as each metric's reduction says. Where `stop`
  // says so on any rank before the last batch, it ends, with none of these.
  absl::Status run(StepMetrics& step, absl::FunctionRef<bool()> stop);
  // Whether the last run() ended so.
  bool stopped() const { return stopped_; }
  // Takes up an evaluation's loss: whether it is the best so far, and whether training should end.
  bool improves(double loss);
  bool wants_to_stop() const { return options_.patience > 0 && without_gain_ >= options_.patience; }

  // For the checkpoint, and from it.
  std::optional<double> best() const { return best_; }
  int64_t without_gain() const { return without_gain_; }
  void restore(std::optional<double> best, int64_t without_gain) { best_ = best, without_gain_ = without_gain; }

 private:
  Evaluator(const EvaluateOptions& options, Communicator* communicator)
      : options_(options), communicator_(communicator), exchange_(communicator) {}

  const EvaluateOptions& options_;
  Communicator* const communicator_;
  FlagExchange exchange_;  // whether to stop
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<InputStage> inputs_;
  std::vector<NamedMetric> metrics_;
  int64_t batches_ = 0, without_gain_ = 0;
  bool stopped_ = false;
  std::optional<double> best_;
};

// The first output of that name, an f32 or f64 scalar.
std::optional<double> scalar_output(const Executor& executor, std::string_view name);
// Sets what sums over a step's micro-batches to zero.
absl::Status clear_accumulators(const Executor& executor);

}  // namespace partita::runtime
