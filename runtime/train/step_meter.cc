#include "runtime/train/step_meter.h"

#include <cstdio>
#include <utility>
#include <vector>

#include "base/cat.h"
#include "base/status.h"
#include "runtime/device/device.h"
#include "runtime/program/placement.h"
#include "runtime/program/sides.h"

namespace partita::runtime {

StepMeter::StepMeter(const Executor& executor, Communicator* communicator, const MeasuredCommunicator* measured,
                     const StepFigures& figures)
    : executor_(&executor),
      samples_(static_cast<double>(executor.program().samples_per_step)),
      measured_(measured),
      figures_(figures) {
  follow(executor, std::nullopt);
  if (measured == nullptr) return;
  const Program& program = executor.program();
  if (needs_device(program)) return;
  std::vector<int64_t> stages;
  for (int64_t r = 0; r < mesh_size(program.mesh); ++r) stages.push_back(stage_of(program.mesh, r));
  rank_times_.emplace(*communicator, std::move(stages));
}

void StepMeter::follow(const Executor& executor, std::optional<double> flops) {
  executor_ = &executor;
  const Program& program = executor.program();
  named_ = named_metrics(program);
  flops_ = flops.value_or(figures_.flops * static_cast<double>(program.samples_per_step) / samples_);
  for (size_t k = 0; k < program.groups.size(); ++k) {
    std::string axes;
    for (int32_t a : program.groups[k].axes)
      append(axes, axes.empty() ? "" : "_", program.mesh[static_cast<size_t>(a)].name);
    if (executor.group_id(k)) group_names_[*executor.group_id(k)] = axes;
  }
}

void StepMeter::begin(const StepPrograms& programs) {
  const LengthPart* part = programs.length();
  follow(programs.running(), part != nullptr ? std::optional(part->flops) : std::nullopt);
  step_began_ = Clock::now();
  stalled_ = programs.inputs().stall_seconds();
  if (measured_ != nullptr) waited_ = measured_->waited();
}

absl::StatusOr<StepMetrics> StepMeter::end(int64_t step, const StepPrograms& programs) {
  const InputStage& inputs = programs.inputs();
  const auto seconds_since = [](Clock::time_point t) {
    return std::chrono::duration<double>(Clock::now() - t).count();
  };
  StepMetrics m = outputs(step);
  m.seconds = seconds_since(step_began_);
  if (const LengthPart* part = programs.length()) m.length = part->length;
  const double samples = static_cast<double>(executor_->program().samples_per_step);
  m.samples_per_second = samples / m.seconds;
  if (const int64_t tokens = inputs.source().tokens_per_sample(); tokens > 0)
    m.tokens_per_second = *m.samples_per_second * static_cast<double>(tokens);
  if (flops_ > 0) m.flops_per_second = flops_ / m.seconds;
  if (flops_ > 0 && figures_.peak_flops > 0) m.mfu = *m.flops_per_second / figures_.peak_flops;
  if (figures_.price_per_hour > 0) m.dollars = seconds_since(began_) / 3600 * figures_.price_per_hour;
  m.input_stall_seconds = inputs.stall_seconds() - stalled_;
  if (measured_ != nullptr) PARTITA_RETURN_IF_ERROR(add_waits(m));
  return m;
}

StepMetrics StepMeter::unmeasured(int64_t step) const {
  StepMetrics m;
  m.step = step;
  for (const NamedMetric& metric : named_) m.named.emplace_back(metric.metric.name, std::nullopt);
  return m;
}

StepMetrics StepMeter::outputs(int64_t step) const {
  const auto scalar = [&](std::string_view name) { return scalar_output(*executor_, name); };
  const Program& program = executor_->program();
  StepMetrics m;
  m.step = step;
  m.loss = scalar("loss");
  m.lr = scalar("lr");
  m.grad_norm = scalar("grad_norm");
  m.loss_scale = scalar("loss_scale");
  m.skipped = scalar("skipped").value_or(0) != 0;
  for (const NamedMetric& metric : named_) m.named.emplace_back(metric.metric.name, scalar(metric.output));
  int64_t bytes = 0;  // of the device, where there is one
  for (int r = 0; r < kRegions; ++r) {
    if (!needs_device(program) || !in_host_memory(static_cast<Region>(r))) bytes += program.region_bytes[r];
  }
  m.memory_bytes = bytes;
  if (Device* device = executor_->device(); device != nullptr && executor_->rank() == 0) m.extra = device->readings();
  return m;
}

// What this rank waited for others, by group, and what the ranks' own work takes.
absl::Status StepMeter::add_waits(StepMetrics& m) {
  double all = 0;
  std::map<std::string, double> by_axes;  // of a stage's groups several have the same axes
  for (const auto& [group, seconds] : measured_->waited()) {
    const auto before = waited_.find(group);
    const double step = seconds - (before == waited_.end() ? 0 : before->second);
    all += step;
    if (const auto name = group_names_.find(group); name != group_names_.end()) by_axes[name->second] += step;
  }
  for (const auto& [axes, seconds] : by_axes) m.extra.emplace_back(cat("wait_", axes), seconds);
  m.communication_stall_seconds = all;
  if (!rank_times_) return absl::OkStatus();
  PARTITA_ASSIGN_OR_RETURN(const RankTimes::Seen* seen,
                           rank_times_->add(m.seconds - all - *m.input_stall_seconds, m.seconds));
  if (seen == nullptr) return absl::OkStatus();
  m.rank_seconds = seen->seconds;
  const RankTimes::Slow& slow = seen->slowest;
  if (slow.tell && executor_->rank() == 0)
    std::fprintf(stderr,
                 "warning: rank %d is slow: its own work takes %.3g s a step, %.2f times that of the others, for %lld "
                 "steps now\n",
                 slow.rank, seen->seconds[static_cast<size_t>(slow.rank)], slow.ratio,
                 static_cast<long long>(slow.steps));
  return absl::OkStatus();
}

}  // namespace partita::runtime
