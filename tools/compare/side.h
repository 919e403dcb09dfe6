// One side of a comparison: a bundle that runs on given samples, step by step, with what its ranks have in memory kept.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/compare/captures.h"
#include "tools/compare/compare.h"
#include "tools/compare/rank_copies.h"
#include "tools/compare/step_check.h"

namespace partita {

// Losses as the run reports them.
class Losses : public runtime::MetricsSink {
 public:
  absl::Status write(const runtime::StepMetrics& m) override {
    all.push_back(m.loss);
    return absl::OkStatus();
  }
  std::vector<std::optional<double>> all;
};

// A bundle that runs on these samples, one step at a time, on a thread of its own.
class Side {
 public:
  // The first `unseen` of the steps are taken without being kept.
  static absl::StatusOr<std::unique_ptr<Side>> start(const ComparedBundle& b, const runtime::DataConfig& data,
                                                     int64_t steps, int64_t unseen = 0);
  ~Side() {
    captures_.cancel();
    if (runner_.joinable()) runner_.join();
  }

  const std::string& name() const { return name_; }
  const RankCopies& copies() const { return copies_; }
  const Captures& captures() const { return captures_; }
  const Graph& graph() const { return copies_.serial().graph(); }
  // The next step, which all ranks have ended; the run's own error.
  absl::Status next_step();
  void go_on() { captures_.go_on(); }
  StepReport check(const RankCopies::Copies& step) const {
    return StepCheck(copies_.serial(), copies_.runs(), step).run();
  }
  // Of the last step, when it has run.
  std::optional<double> last_loss() {
    if (runner_.joinable()) runner_.join();
    return losses_.all.empty() ? std::nullopt : losses_.all.back();
  }

 private:
  Side(const ComparedBundle& b, RankCopies copies, runtime::LoadedPrograms loaded, runtime::TrainOptions options,
       int64_t unseen)
      : name_(b.name),
        copies_(std::move(copies)),
        captures_(b.bundle, unseen),
        loaded_(std::move(loaded)),
        options_(std::move(options)) {
    options_.observer = &captures_;
    runner_ = std::thread([this] {
      status_ = runtime::train_local(loaded_, options_, &losses_);
      captures_.end(status_.ok());
    });
  }

  const std::string name_;
  const RankCopies copies_;
  Captures captures_;
  const runtime::LoadedPrograms loaded_;
  runtime::TrainOptions options_;
  Losses losses_;
  absl::Status status_;
  std::thread runner_;
};

}  // namespace partita
