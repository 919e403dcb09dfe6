#include "runtime/train/evaluator.h"

#include <algorithm>
#include <cstring>

#include "base/cat.h"
#include "base/status.h"
#include "runtime/communicate/exchanges.h"

namespace partita::runtime {

std::optional<double> scalar_output(const Executor& executor, std::string_view name) {
  for (const ProgramOutput& o : executor.program().outputs) {
    if (o.name != name) continue;
    if (!executor.fetch(o.operand).ok()) return std::nullopt;
    const std::byte* p = executor.memory(o.operand).data();
    double wide = 0;
    float narrow = 0;
    if (o.operand.dtype == DType::kF64) {
      std::memcpy(&wide, p, sizeof wide);
      return wide;
    }
    std::memcpy(&narrow, p, sizeof narrow);
    return narrow;
  }
  return std::nullopt;
}

absl::Status clear_accumulators(const Executor& executor) {
  for (const ProgramState& s : executor.program().states) {
    if (s.kind != StateKind::kAccumulator) continue;
    std::span<std::byte> own = executor.memory(s.operand);
    std::memset(own.data(), 0, own.size());
    PARTITA_RETURN_IF_ERROR(executor.put(s.operand));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Evaluator>> Evaluator::open(const EvaluateOptions& options, const Executor& training,
                                                           Communicator* communicator, int threads) {
  std::unique_ptr<Evaluator> e(new Evaluator(options, communicator));
  PARTITA_ASSIGN_OR_RETURN(
      e->executor_, Executor::create(options.programs.of(training.rank()), communicator,
                                     {.threads = threads, .states_of = &training, .recorder = training.recorder()}));
  PARTITA_ASSIGN_OR_RETURN(e->inputs_, InputStage::open(options.data, *e->executor_));
  e->metrics_ = named_metrics(e->executor_->program());
  e->batches_ = options.batches;
  if (e->batches_ < 0) {
    const int64_t samples = e->inputs_->source().samples_per_epoch();
    if (samples == kUnlimited)
      return absl::InvalidArgumentError(
          "evaluate: the data have no end; say how many batches: evaluate: {batches: 10}");
    e->batches_ = std::max<int64_t>(samples / e->executor_->program().samples_per_step, 1);
  }
  const DataSource& source = e->inputs_->source();
  if (const absl::Status enough = source.check_steps(0, e->batches_); !enough.ok()) {
    const int64_t batch = source.global_batch(), most = source.samples_per_epoch() / batch;
    if (options.batches < 0 || most == 0) return with_context(enough, "evaluate");
    return absl::InvalidArgumentError(cat("evaluate.batches: ", options.batches, " of ", batch,
                                          " samples each are more than the ", source.samples_per_epoch(),
                                          " samples of evaluate.data hold; say at most ", most,
                                          ", or leave batches out to take all"));
  }
  return e;
}

std::vector<NamedMetric> named_metrics(const Program& program) {
  std::vector<NamedMetric> out;
  for (const ProgramOutput& o : program.outputs) {
    if (std::optional<MetricOutput> metric = read_metric_output(o.name)) out.push_back({o.name, *std::move(metric)});
  }
  return out;
}

void Evaluator::name_metrics(StepMetrics& step) const {
  for (const NamedMetric& metric : metrics_)
    step.named.emplace_back(cat("evaluation_", metric.metric.name), std::nullopt);
}

absl::Status Evaluator::run(StepMetrics& step, absl::FunctionRef<bool()> stop) {
  PARTITA_RETURN_IF_ERROR(inputs_->start(0, batches_));
  double sum = 0;
  std::vector<double> values(metrics_.size());
  for (int64_t k = 0; k < batches_; ++k) {
    PARTITA_ASSIGN_OR_RETURN(Batch batch, inputs_->take(k));
    exchange_.begin({stop() ? 1 : 0});
    PARTITA_RETURN_IF_ERROR(clear_accumulators(*executor_));
    PARTITA_RETURN_IF_ERROR(executor_->run(
        executor_->program().schedule,
        [&](int64_t micro_batch, int64_t slot) { return inputs_->stage(batch, micro_batch, slot); },
        [&] { return inputs_->upload_ahead(k + 1); }));
    inputs_->give_back(std::move(batch));
    PARTITA_ASSIGN_OR_RETURN(const ExchangedFlags said, exchange_.end());
    stopped_ = said[0] != 0 && k + 1 < batches_;
    if (stopped_) return absl::OkStatus();
    sum += scalar_output(*executor_, "loss").value_or(0);
    for (size_t m = 0; m < values.size(); ++m) {
      const double value = scalar_output(*executor_, metrics_[m].output).value_or(0);
      values[m] = metrics_[m].metric.reduction == MetricReduction::kLast ? value : values[m] + value;
    }
  }
  for (size_t m = 0; m < values.size(); ++m) {
    const bool mean = metrics_[m].metric.reduction == MetricReduction::kMean;
    step.named[step.named.size() - values.size() + m].second =
        mean ? values[m] / static_cast<double>(batches_) : values[m];
  }
  // Whatever is decided by it is decided by one number.
  std::string bytes(8, '\0');
  const double mean = sum / static_cast<double>(batches_);
  std::memcpy(bytes.data(), &mean, sizeof mean);
  PARTITA_RETURN_IF_ERROR(broadcast_text(communicator_, bytes, "evaluation loss"));
  double agreed = 0;
  std::memcpy(&agreed, bytes.data(), sizeof agreed);
  step.evaluation_loss = agreed;
  return absl::OkStatus();
}

bool Evaluator::improves(double loss) {
  const bool better = !best_ || loss < *best_ - options_.min_gain;
  without_gain_ = better ? 0 : without_gain_ + 1;
  if (better) best_ = loss;
  return better;
}

}  // namespace partita::runtime
