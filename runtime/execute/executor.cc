#include "runtime/execute/executor.h"

#include <omp.h>

#include <algorithm>
#include <cstring>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/program/placement.h"
#include "runtime/program/program_check.h"
#include "runtime/program/sides.h"

namespace partita::runtime {
namespace {

void fill_scalar(std::span<std::byte> to, DType dtype, int64_t value) {
  const int32_t narrow = static_cast<int32_t>(value);
  const int64_t size = dtype_size(dtype);
  for (size_t at = 0; at + static_cast<size_t>(size) <= to.size(); at += static_cast<size_t>(size)) {
    std::memcpy(to.data() + at, size == 8 ? static_cast<const void*>(&value) : &narrow, static_cast<size_t>(size));
  }
}

// Whether its sums over samples have a fixed order (train.yaml's reproducible).
bool has_fixed_sums(const Program& program) {
  return std::any_of(program.segments.begin(), program.segments.end(), [](const ProgramSegment& segment) {
    return std::any_of(segment.steps.begin(), segment.steps.end(),
                       [](const Step& step) { return step.name == "accumulate_tree" || step.name == "block_squares"; });
  });
}

}  // namespace

absl::StatusOr<std::shared_ptr<const LoadedProgram>> LoadedProgram::load(Program program) {
  PARTITA_RETURN_IF_ERROR(check_program(program));
  auto loaded = std::make_shared<LoadedProgram>();
  loaded->program = std::move(program);
  const Program& p = loaded->program;
  const std::vector<uint8_t>& code = needs_device(p) ? p.host_kernels : p.kernels;
  if (!code.empty()) {
    PARTITA_ASSIGN_OR_RETURN(loaded->kernels, KernelModule::load(code));
  }
  PARTITA_ASSIGN_OR_RETURN(loaded->constants,
                           RegionMemory::allocate(loaded->program.region_bytes[static_cast<int>(Region::kConstant)]));
  std::copy_n(reinterpret_cast<const std::byte*>(loaded->program.constants.data()), loaded->program.constants.size(),
              loaded->constants.data());
  return loaded;
}

absl::StatusOr<LoadedPrograms> LoadedPrograms::load(std::vector<Program> programs) {
  LoadedPrograms all;
  for (Program& p : programs) {
    PARTITA_ASSIGN_OR_RETURN(auto loaded, LoadedProgram::load(std::move(p)));
    all.stages_.push_back(std::move(loaded));
  }
  return all;
}

std::shared_ptr<const LoadedProgram> LoadedPrograms::of(int64_t rank) const {
  return stages_[static_cast<size_t>(stage_of(first().mesh, rank))];
}

absl::StatusOr<std::unique_ptr<Executor>> Executor::create(std::shared_ptr<const LoadedProgram> loaded,
                                                           Communicator* communicator, const ExecutorOptions& options) {
  std::unique_ptr<Executor> executor(new Executor(std::move(loaded)));
  executor->threads_ = std::max(options.threads, 1);
  executor->observer_ = options.observer;
  executor->recorder_ = options.recorder;
  if (options.recorder != nullptr) {
    PARTITA_ASSIGN_OR_RETURN(executor->recorded_, options.recorder->add_program(executor->program()));
  }
  omp_set_num_threads(executor->threads_);
  if (!options.tune.empty() && !needs_device(executor->program()))
    return absl::InvalidArgumentError(
        cat("--tune times the products of a GPU, and the program is for ", quote(executor->program().target)));
  PARTITA_RETURN_IF_ERROR(executor->join(communicator));
  if (communicator == nullptr && team_size(executor->program(), executor->threads_) < executor->threads_)
    executor->team_.emplace(executor->threads_);
  if (needs_device(executor->program())) {
    if (options.states_of != nullptr) executor->device_ = options.states_of->device_;
    if (executor->device_ == nullptr) {
      PARTITA_ASSIGN_OR_RETURN(executor->device_, options.open_device(executor->program(), options.device));
      if (!options.tune.empty()) PARTITA_RETURN_IF_ERROR(executor->device_->tune(options.tune));
    }
  }
  PARTITA_RETURN_IF_ERROR(executor->create_groups());
  PARTITA_RETURN_IF_ERROR(executor->allocate(options.shares_memory ? options.states_of : nullptr));
  PARTITA_RETURN_IF_ERROR(executor->stage_coordinates());
  if (options.states_of != nullptr) PARTITA_RETURN_IF_ERROR(executor->borrow_states(*options.states_of));
  PARTITA_RETURN_IF_ERROR(executor->bind({.threads = executor->threads_,
                                          .scratch = executor->scratch_,
                                          .reproducible = has_fixed_sums(executor->program())}));
  if (options.profile) executor->profile_.emplace(executor->program(), executor->rank_, options.trace_events);
  return executor;
}

absl::Status Executor::join(Communicator* communicator) {
  const int64_t ranks = mesh_size(program().mesh), present = communicator != nullptr ? communicator->size() : 1;
  if (ranks != present)
    return absl::FailedPreconditionError(
        cat("the program is compiled for ", ranks, " ranks, but ", present, " are running"));
  communicator_ = communicator;
  rank_ = communicator != nullptr ? communicator->rank() : 0;
  coordinates_ = mesh_coordinates(program().mesh, rank_);
  return absl::OkStatus();
}

absl::Status Executor::create_groups() {
  if (device_ != nullptr && communicator_ != nullptr) {
    PARTITA_ASSIGN_OR_RETURN(device_communicator_, device_->communicator(*communicator_));
    communicator_ = device_communicator_.get();
  }
  for (const CollectiveGroup& group : program().groups) {
    const std::vector<int> members = group_ranks(program().mesh, group, rank_);
    Group made{.mine = static_cast<int>(std::find(members.begin(), members.end(), rank_) - members.begin()),
               .size = static_cast<int>(members.size())};
    if (made.size > 1) {
      PARTITA_ASSIGN_OR_RETURN(made.id, communicator_->create_group(members));
    }
    groups_.push_back(made);
  }
  return absl::OkStatus();
}

// Before anything runs: a prologue reads them too.
absl::Status Executor::stage_coordinates() {
  for (const ProgramInput& input : program().inputs) {
    for (size_t a = 0; a < coordinates_.size() && input.kind == InputKind::kCoordinate; ++a) {
      if (program().mesh[a].name != input.name) continue;
      for (int64_t slot = 0; slot < program().slots; ++slot)
        PARTITA_RETURN_IF_ERROR(stage_scalar(input.operand, slot, coordinates_[a]));
    }
  }
  return absl::OkStatus();
}

absl::Status Executor::stage_scalar(const Operand& operand, int64_t slot, int64_t value) {
  fill_scalar(memory(operand, slot), operand.dtype, value);
  return put(operand, slot);
}

bool Executor::takes_samples(const ScheduleEntry& entry) const {
  const Segment kind = program().segments[static_cast<size_t>(entry.segment)].kind;
  return kind == Segment::kForward || kind == Segment::kBackward;
}

absl::Status Executor::run(std::span<const ScheduleEntry> schedule,
                           absl::FunctionRef<absl::Status(int64_t, int64_t)> stage,
                           absl::FunctionRef<absl::Status()> queued) {
  if (!team_) return run_schedule(schedule, stage, queued);
  omp_set_num_threads(team_->size());
  const auto begin = StepProfile::Clock::now();
  PARTITA_RETURN_IF_ERROR(run_schedule(schedule, stage, queued));
  team_->took(std::chrono::duration<double>(StepProfile::Clock::now() - begin).count());
  return absl::OkStatus();
}

absl::Status Executor::run_schedule(std::span<const ScheduleEntry> schedule,
                                    absl::FunctionRef<absl::Status(int64_t, int64_t)> stage,
                                    absl::FunctionRef<absl::Status()> queued) {
  std::fill(staged_.begin(), staged_.end(), -1);
  if (observer_ != nullptr) observer_->begin(*this);
  if (profile_ && device_ != nullptr) {
    PARTITA_RETURN_IF_ERROR(device_->synchronize());
    PARTITA_RETURN_IF_ERROR(device_->take_stamps().status());
    PARTITA_RETURN_IF_ERROR(device_->stamp());
    stamps_begin_ = StepProfile::Clock::now();
    stamped_.clear();
  }
  for (const ScheduleEntry& entry : schedule) {
    int64_t& staged = staged_[static_cast<size_t>(entry.slot)];
    if (staged != entry.micro_batch && takes_samples(entry)) {
      for (const ProgramInput& input : program().inputs) {
        if (input.kind == InputKind::kMicroBatch)
          PARTITA_RETURN_IF_ERROR(stage_scalar(input.operand, entry.slot, entry.micro_batch));
      }
      PARTITA_RETURN_IF_ERROR(stage(entry.micro_batch, entry.slot));
      staged = entry.micro_batch;
    }
    PARTITA_RETURN_IF_ERROR(run_segment(entry));
  }
  PARTITA_RETURN_IF_ERROR(finish_sends());
  PARTITA_RETURN_IF_ERROR(queued());
  if (device_ != nullptr) PARTITA_RETURN_IF_ERROR(device_->synchronize());
  if (profile_ && device_ != nullptr) PARTITA_RETURN_IF_ERROR(add_stamped());
  host_copies_.clear();
  if (recorder_ != nullptr) recorder_->idle();
  return device_communicator_ != nullptr ? device_communicator_->failure() : absl::OkStatus();
}

absl::Status Executor::run_segment(const ScheduleEntry& entry) {
  std::vector<BoundStep>& steps = segments_[static_cast<size_t>(entry.segment)];
  for (size_t k = 0; k < steps.size();) {
    BoundStep& step = steps[k];
    if (recorder_ != nullptr)
      recorder_->step(recorded_ + static_cast<int32_t>(step.step->id), static_cast<int32_t>(entry.micro_batch));
    const size_t together = profile_ || observer_ != nullptr ? 1 : std::max<size_t>(step.run, 1);
    absl::Status status = observer_ != nullptr ? run_observed(step, entry)
                          : profile_           ? run_profiled(step, entry)
                                               : run_beside_copies({&step, together}, entry.slot);
    if (status.ok() && device_ != nullptr) status = device_->failure();
    if (!status.ok()) return with_context(status, describe_step(program(), *step.step));
    k += together;
  }
  return absl::OkStatus();
}

absl::Status Executor::run_observed(BoundStep& step, const ScheduleEntry& entry) {
  PARTITA_RETURN_IF_ERROR(observer_->before(*this, *step.step, entry));
  PARTITA_RETURN_IF_ERROR(run_step(step, entry.slot));
  if (device_ != nullptr) PARTITA_RETURN_IF_ERROR(device_->synchronize());
  return observer_->after(*this, *step.step, entry);
}

// A device's own clock tells the time of its steps: waiting for each would make it idle between them. Of a collective
// it shows what the others had to wait for.
absl::Status Executor::run_profiled(BoundStep& step, const ScheduleEntry& entry) {
  if (step.is_batched) return absl::OkStatus();
  if (device_ != nullptr && !step.on_host) {
    PARTITA_RETURN_IF_ERROR(device_->stamp());
    PARTITA_RETURN_IF_ERROR(run_step(step, entry.slot));
    stamped_.push_back({&step, entry});
    return device_->stamp();
  }
  const StepProfile::Clock::time_point begin = StepProfile::Clock::now();
  PARTITA_RETURN_IF_ERROR(run_step(step, entry.slot));
  profile_->add(*step.step, entry, begin, StepProfile::Clock::now());
  return absl::OkStatus();
}

absl::Status Executor::add_stamped() {
  PARTITA_ASSIGN_OR_RETURN(const std::vector<double> times, device_->take_stamps());
  const auto at = [&](size_t stamp) {
    return stamps_begin_ +
           std::chrono::duration_cast<StepProfile::Clock::duration>(std::chrono::duration<double>(times[stamp]));
  };
  for (size_t k = 0; k < stamped_.size(); ++k)
    add_batched(*stamped_[k].step, stamped_[k].entry, at(2 * k + 1), at(2 * k + 2));
  stamped_.clear();
  return absl::OkStatus();
}

// The time of a batched launch goes to its steps by their bytes.
void Executor::add_batched(const BoundStep& step, const ScheduleEntry& entry, StepProfile::Clock::time_point begin,
                           StepProfile::Clock::time_point end) {
  std::span<const Step* const> steps = step.batched_steps;
  if (steps.empty()) steps = {&step.step, 1};
  int64_t rest = 0;
  for (const Step* s : steps) rest += std::max<int64_t>(s->bytes, 1);
  for (const Step* s : steps) {
    const int64_t bytes = std::max<int64_t>(s->bytes, 1);
    const auto until = begin + (end - begin) / rest * bytes + (end - begin) % rest * bytes / rest;
    profile_->add(*s, entry, begin, until);
    begin = until;
    rest -= bytes;
  }
}

absl::Status Executor::run_beside_copies(std::span<BoundStep> steps, int64_t slot) {
  const auto issue = [&] { return steps.size() > 1 ? run_together(steps, slot) : run_step(steps[0], slot); };
  if (steps[0].uses == kNoUses) return issue();
  return device_->beside_copies(uses_[steps[0].uses + static_cast<size_t>(slot)], issue);
}

absl::Status Executor::run_together(std::span<BoundStep> steps, int64_t slot) {
  return device_->replay(steps[0].replay + static_cast<size_t>(slot), [&] {
    for (BoundStep& step : steps) PARTITA_RETURN_IF_ERROR(run_step(step, slot));
    return absl::OkStatus();
  });
}

absl::Status Executor::run_step(BoundStep& step, int64_t slot) {
  std::byte* const* buffers = buffers_.data() + step.buffers + static_cast<size_t>(slot) * step.slot_buffers;
  switch (step.step->kind) {
    case StepKind::kKernel:
    case StepKind::kLibrary:
      if (step.is_batched) break;
      if (!step.batched.empty()) {
        step.batched[step.batched.size() > 1 ? static_cast<size_t>(slot) : 0]->run({});
        break;
      }
      if (step.on_host)
        PARTITA_RETURN_IF_ERROR(host_copies_.wait_for(*device_, {buffers, step.step->operands.size()}, *step.step));
      if (step.library != nullptr) {
        step.library->run({buffers, step.step->operands.size()});
      } else {
        run_kernel(step, buffers);
      }
      break;
    case StepKind::kCopy:
      return copy_between(step, buffers);
    case StepKind::kCollectiveStart:
      return start_collective(step, buffers, slot);
    case StepKind::kCollectiveWait: {
      if (step.alone) return absl::OkStatus();
      Ticket ticket = tickets_[step.ticket + static_cast<size_t>(slot)];
      // What a prologue started in its slot is waited for in every slot, by each micro-batch again.
      for (size_t s = 0; ticket == 0 && s < static_cast<size_t>(program().slots); ++s)
        ticket = tickets_[step.ticket + s];
      if (ticket == 0) return absl::FailedPreconditionError("the collective it waits for has not been started");
      return communicator_->wait(ticket);
    }
  }
  return absl::OkStatus();
}

void Executor::run_kernel(const BoundStep& step, std::byte* const* buffers) {
  char* const* addresses = reinterpret_cast<char* const*>(buffers);
  const int64_t units = step.step->units;
  if (!step.parallel) {
    step.function(addresses, 0, units);
    return;
  }
#pragma omp parallel
  {
    const int64_t n = omp_get_num_threads(), t = omp_get_thread_num();
    const int64_t begin = units / n * t + std::min(t, units % n), end = begin + units / n + (t < units % n ? 1 : 0);
    if (begin < end) step.function(addresses, begin, end);
  }
}

absl::Status Executor::start_collective(const BoundStep& step, std::byte* const* buffers, int64_t slot) {
  if (step.outbox >= 0) return send(step, buffers);
  if (step.alone && step.collective.kind == CollectiveKind::kRecv) return receive_own(step, buffers);
  const bool copies = step.alone || (step.collective.kind == CollectiveKind::kBroadcast && step.is_root);
  CollectiveOp op = step.collective;
  for (const CollectivePiece& piece : step.pieces) {
    std::byte *input = piece.input < 0 ? nullptr : buffers[piece.input],
              *output = piece.output < 0 ? nullptr : buffers[piece.output];
    if (input != nullptr && output != nullptr && copies) PARTITA_RETURN_IF_ERROR(copy(output, input, piece.bytes));
    const bool in_place = op.kind == CollectiveKind::kAllReduce && input == output;
    op.more.push_back({piece.count, in_place ? nullptr : input, output});
  }
  if (step.alone) return absl::OkStatus();
  op.count = op.more.front().count;
  op.input = op.more.front().input;
  op.output = op.more.front().output;
  op.more.erase(op.more.begin());
  tickets_[step.ticket + static_cast<size_t>(slot)] = communicator_->start(std::move(op));
  return absl::OkStatus();
}

}  // namespace partita::runtime
