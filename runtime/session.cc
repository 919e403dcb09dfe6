#include "runtime/session.h"

#include <utility>

#include "base/cat.h"
#include "base/fault.h"
#include "base/status.h"
#include "runtime/communicate/exchanges.h"
#include "runtime/kernels/onednn.h"
#include "runtime/launch/communicator_factory.h"
#include "runtime/program/bundle_names.h"
#include "runtime/program/bundle_plans.h"
#include "runtime/program/placement.h"
#include "runtime/train/trainer.h"

namespace partita::runtime {

constexpr double kUnlimitedSeconds = 1e9;

// Hands a step's numbers to who waits for them, and to the flags' own sinks.
class Session::Sink : public MetricsSink {
 public:
  Sink(Session& session, std::unique_ptr<MetricsSink> others) : session_(session), others_(std::move(others)) {}

  absl::Status write(const StepMetrics& m) override {
    absl::Status status = others_ != nullptr ? others_->write(m) : absl::OkStatus();
    {
      std::lock_guard lock(session_.mutex_);
      session_.metrics_ = m;
    }
    session_.changed_.notify_all();
    return status;
  }
  absl::Status close() override { return others_ != nullptr ? others_->close() : absl::OkStatus(); }

 private:
  Session& session_;
  const std::unique_ptr<MetricsSink> others_;
};

absl::StatusOr<std::unique_ptr<Session>> Session::open(const std::string& folder, const RunFlags& flags,
                                                       std::vector<std::string> inputs) {
  const EnvironmentMap environment = read_environment();
  prepare_onednn(chooses_onednn_instructions(environment));
  PARTITA_ASSIGN_OR_RETURN(LaunchEnvironment launch, parse_launch_environment(environment));
  PARTITA_ASSIGN_OR_RETURN(const auto bundle, BundleFiles::open(folder, flags.trust()));
  const int threads = flags.threads_of(launch.local_size);
  PARTITA_RETURN_IF_ERROR(bundle->check(threads, /*weights=*/false));
  const bool here = launch.world_size == 1;  // all ranks
  PARTITA_ASSIGN_OR_RETURN(
      const auto plan, open_checked_plan(bundle, here ? ranks_of(*bundle) : launch.world_size, flags.trust(), threads));
  std::unique_ptr<Session> session(new Session());
  session->flags_ = flags;
  session->feed_ = session->flags_.feed =
      std::make_shared<SampleFeed>(std::move(inputs), here ? static_cast<int>(ranks_of(*plan)) : 1);
  session->thread_ = std::thread([self = session.get(), bundle, plan, launch] {
    absl::Status status;
    try {
      status = self->train(bundle, *plan, launch);
    } catch (...) {
      status = status_of_exception();
    }
    {
      std::lock_guard lock(self->mutex_);
      self->ended_ = std::move(status);
    }
    self->feed_->close();
    self->changed_.notify_all();
  });
  return session;
}

absl::Status Session::train(const std::shared_ptr<const BundleFiles>& bundle, const BundleFiles& plan,
                            const LaunchEnvironment& launch) {
  PARTITA_ASSIGN_OR_RETURN(TrainOptions options, flags_.options(plan));
  PARTITA_ASSIGN_OR_RETURN(std::vector<Program> programs, programs_of(plan));
  options.plugins = {{}, bundle};
  // Samples come when the program around it has them.
  std::optional<double>& patience = options.timeouts.phases[static_cast<size_t>(Phase::kData)];
  if (!patience) patience = kUnlimitedSeconds;
  std::unique_ptr<MetricsSink> others;
  if (launch.rank == 0) {
    PARTITA_ASSIGN_OR_RETURN(others, flags_.sink(0));
  }
  Sink sink(*this, std::move(others));
  absl::Status status;
  if (launch.world_size == 1) {
    PARTITA_ASSIGN_OR_RETURN(auto loaded, LoadedPrograms::load(std::move(programs)));
    status = train_local(loaded, options, &sink);
  } else {
    options.device = launch.device;
    PARTITA_ASSIGN_OR_RETURN(auto communicator, open_communicator(launch, "auto", {{}, options.plugins}));
    PARTITA_RETURN_IF_ERROR(communicator->agree("the bundle", as_byte_span(plan.root())));
    const size_t stage = static_cast<size_t>(stage_of(programs.front().mesh, launch.rank));
    PARTITA_ASSIGN_OR_RETURN(auto loaded, LoadedProgram::load(std::move(programs[stage])));
    status = train_rank(loaded, communicator.get(), options, &sink);
  }
  status.Update(sink.close());
  return status;
}

Session::~Session() { close().IgnoreError(); }

absl::StatusOr<StepMetrics> Session::step(SampleFeed::Columns columns) {
  {
    std::lock_guard lock(mutex_);
    if (ended_) return ended_->ok() ? absl::FailedPreconditionError("the session is closed") : *ended_;
    metrics_.reset();
  }
  feed_->supply(std::move(columns));
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return metrics_ || ended_; });
  if (!metrics_) return *ended_;
  StepMetrics m = *std::move(metrics_);
  lock.unlock();
  feed_->wait_given_back();
  return m;
}

absl::Status Session::close() {
  if (!thread_.joinable()) return absl::OkStatus();
  feed_->close();
  thread_.join();
  return *ended_;
}

}  // namespace partita::runtime
