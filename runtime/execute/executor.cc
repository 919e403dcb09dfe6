#include "runtime/execute/executor.h"

#include <omp.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/box.h"
#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/program/batched_launches.h"
#include "runtime/program/params.h"
#include "runtime/program/placement.h"
#include "runtime/program/program_check.h"
#include "runtime/program/sides.h"

namespace partita::runtime {
namespace {

// Below this a step's memory traffic costs less than waking the team.
constexpr int64_t kSerialBytes = 128 << 10;

CollectiveKind collective_kind(const std::string& name) {
  for (CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter, CollectiveKind::kAllGather,
                              CollectiveKind::kBroadcast, CollectiveKind::kAllToAll, CollectiveKind::kSend,
                              CollectiveKind::kRecv, CollectiveKind::kPermute}) {
    if (collective_name(kind) == name) return kind;
  }
  return CollectiveKind::kBarrier;
}

void fill_scalar(std::span<std::byte> to, DType dtype, int64_t value) {
  const int32_t narrow = static_cast<int32_t>(value);
  const int64_t size = dtype_size(dtype);
  for (size_t at = 0; at + static_cast<size_t>(size) <= to.size(); at += static_cast<size_t>(size)) {
    std::memcpy(to.data() + at, size == 8 ? static_cast<const void*>(&value) : &narrow, static_cast<size_t>(size));
  }
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
  omp_set_num_threads(executor->threads_);
  if (!options.tune.empty() && !needs_device(executor->program()))
    return absl::InvalidArgumentError(
        cat("--tune times the products of a GPU, and the program is for ", quote(executor->program().target)));
  PARTITA_RETURN_IF_ERROR(executor->join(communicator));
  if (needs_device(executor->program())) {
    if (options.states_of != nullptr) executor->device_ = options.states_of->device_;
    if (executor->device_ == nullptr) {
      PARTITA_ASSIGN_OR_RETURN(executor->device_, options.open_device(executor->program(), options.device));
      if (!options.tune.empty()) PARTITA_RETURN_IF_ERROR(executor->device_->tune(options.tune));
    }
  }
  PARTITA_RETURN_IF_ERROR(executor->create_groups());
  PARTITA_RETURN_IF_ERROR(executor->allocate());
  PARTITA_RETURN_IF_ERROR(executor->stage_coordinates());
  if (options.states_of != nullptr) PARTITA_RETURN_IF_ERROR(executor->borrow_states(*options.states_of));
  PARTITA_RETURN_IF_ERROR(executor->bind({.threads = executor->threads_, .scratch = executor->scratch_}));
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

absl::Status Executor::bind(const ExecutionConfig& config) {
  size_t starts = 0, steps = 0;
  for (const ProgramSegment& segment : program().segments) steps += segment.steps.size();
  ticket_of_step_.assign(steps, 0);
  alone_.assign(steps, false);
  for (const ProgramSegment& segment : program().segments) {
    for (const Step& step : segment.steps) {
      if (step.kind != StepKind::kCollectiveStart) continue;
      ticket_of_step_[step.id] = static_cast<size_t>(program().slots) * starts++;
      alone_[step.id] =
          groups_[static_cast<size_t>(int_param(step.params, "group", 0))].size == 1 || is_to_itself(step);
    }
  }
  tickets_.assign(starts * static_cast<size_t>(program().slots), 0);
  for (const ProgramSegment& segment : program().segments) {
    segments_.emplace_back();
    for (const Step& step : segment.steps) {
      const absl::Status status = bind_step(step, config);
      if (!status.ok()) return with_context(status, describe_step(program(), step));
    }
    if (device_ != nullptr) PARTITA_RETURN_IF_ERROR(bind_runs(segment, segments_.back()));
  }
  if (device_ != nullptr) {
    PARTITA_ASSIGN_OR_RETURN(device_scratch_, device_->allocate_scratch());
  }
  return with_context(config.scratch->allocate(), "kernel scratch memory");
}

// Computation between collectives, steps of the host and copies to and from its memory.
absl::Status Executor::bind_runs(const ProgramSegment& segment, std::vector<BoundStep>& steps) {
  for (const auto& [begin, end] : device_runs(program(), segment)) {
    const std::span<const Step> of_run(segment.steps.data() + begin, end - begin);
    const std::span<BoundStep> bound(steps.data() + begin, end - begin);
    for (const std::vector<size_t>& launch : joint_launches(of_run, joint_kinds(of_run), program().slots)) {
      if (of_run[launch[0]].params.count(kJointParam) == 0) continue;
      const absl::Status status = bind_joint(bound, launch);
      if (!status.ok()) return with_context(status, describe_step(program(), of_run[launch[0]]));
    }
    bound[0].run = end - begin;
    if (bound[0].run > 1) bound[0].replay = device_->replays(static_cast<size_t>(program().slots));
  }
  return absl::OkStatus();
}

absl::Status Executor::bind_joint(std::span<BoundStep> run, const std::vector<size_t>& launch) {
  BoundStep& first = run[launch[0]];
  bool moves = false;
  for (size_t k : launch) {
    run[k].is_joined = k != launch[0];
    first.joint_steps.push_back(run[k].step);
    moves = moves || run[k].slot_buffers > 0;
  }
  for (size_t slot = 0; slot < (moves ? static_cast<size_t>(program().slots) : 1); ++slot) {
    std::vector<std::byte*> addresses;
    for (size_t k : launch) {
      const auto begin = buffers_.begin() + static_cast<int64_t>(run[k].buffers + slot * run[k].slot_buffers);
      addresses.insert(addresses.end(), begin, begin + static_cast<int64_t>(run[k].step->operands.size()));
    }
    PARTITA_ASSIGN_OR_RETURN(first.joint.emplace_back(),
                             device_->prepare_joint(program(), first.joint_steps, addresses));
  }
  return absl::OkStatus();
}

absl::Status Executor::bind_step(const Step& step, const ExecutionConfig& config) {
  BoundStep bound{.step = &step, .buffers = buffers_.size(), .bytes = step.bytes};
  bound.on_host = runs_on_host(program(), step);
  const bool by_device = device_ != nullptr && !bound.on_host;
  const bool moves = std::any_of(step.operands.begin(), step.operands.end(),
                                 [](const Operand& o) { return o.address.slot_stride != 0; });
  if (moves) bound.slot_buffers = step.operands.size();
  for (int64_t slot = 0; slot < (moves ? program().slots : 1); ++slot) {
    for (const Operand& operand : step.operands) {
      buffers_.push_back(operand.dtype == DType::kInvalid ? nullptr
                         : bound.on_host                  ? memory(operand, slot).data()
                                                          : address(operand, slot));
    }
  }
  switch (step.kind) {
    case StepKind::kKernel: {
      if (by_device && step.params.count(kJointParam) > 0) break;  // bind_joint()
      if (by_device) {
        PARTITA_ASSIGN_OR_RETURN(bound.library, device_->prepare(program(), step));
        break;
      }
      PARTITA_ASSIGN_OR_RETURN(bound.function, loaded_->kernels->find(step.name));
      int64_t bytes = step.bytes;
      if (bytes == 0)
        for (const Operand& operand : step.operands) bytes += operand_bytes(operand);
      bound.parallel = threads_ > 1 && step.units > 1 && bytes >= kSerialBytes;
      break;
    }
    case StepKind::kLibrary: {
      PARTITA_ASSIGN_OR_RETURN(bound.library,
                               by_device ? device_->prepare(program(), step) : prepare_kernel(step, config));
      break;
    }
    case StepKind::kCopy:
      bound.bytes = operand_bytes(step.operands[0]);
      break;
    case StepKind::kCollectiveStart:
      PARTITA_RETURN_IF_ERROR(bind_collective(step, bound));
      break;
    case StepKind::kCollectiveWait: {
      const size_t start = static_cast<size_t>(int_param(step.params, "of", 0));
      bound.ticket = ticket_of_step_[start];
      bound.alone = alone_[start];
      break;
    }
  }
  segments_.back().push_back(std::move(bound));
  return absl::OkStatus();
}

// Params: group; reduce: sum, max, min; broadcast: root (group rank); send, recv: peer (peer_rank()); permute: shift
// (to rank + shift, from rank - shift, around the end unless wrap is 0), or to and from, lists of one group rank per
// member, -1 for none.
absl::Status Executor::bind_collective(const Step& step, BoundStep& bound) {
  const Group& group = groups_[static_cast<size_t>(int_param(step.params, "group", 0))];
  CollectiveOp& op = bound.collective;
  bound.ticket = ticket_of_step_[step.id];
  op.kind = collective_kind(step.name);
  op.group = group.id;
  op.dtype = step.operands[0].dtype;
  op.step_id = step.id;
  op.label = step.origin >= 0 ? program().origins[static_cast<size_t>(step.origin)] : "";
  bound.outbox = int_param(step.params, "outbox", -1);
  if (bound.outbox >= 0) {
    Outbox& box = outboxes_[bound.outbox];
    const auto places = static_cast<size_t>(step.operands[1].shape[0]);
    box.places.resize(std::max(box.places.size(), places), 0);
    bound.bytes = operand_bytes(step.operands[0]);
    bound.pieces = {{.input = 0, .count = *element_count(step.operands[0].shape), .bytes = bound.bytes}};
  } else {
    bound.pieces = pieces(step, group.size);
  }
  const std::string reduce = text_param(step.params, "reduce", "sum");
  if (reduce == "max")
    op.reduce = ReduceOp::kMax;
  else if (reduce == "min")
    op.reduce = ReduceOp::kMin;
  else if (reduce != "sum")
    return absl::InvalidArgumentError(cat("unknown reduction ", quote(reduce)));

  int64_t peer = int_param(step.params, "root", 0);
  if (step.params.count("peer")) {
    const int64_t place = int_param(step.params, "peer", 0);
    const CollectiveGroup& axes = program().groups[static_cast<size_t>(int_param(step.params, "group", 0))];
    const std::vector<int> members = group_ranks(program().mesh, axes, rank_);
    const int64_t world = place < 0 ? -1 : peer_rank(program().mesh, axes, rank_, place);
    if (world < 0) return absl::InvalidArgumentError(cat("peer ", place, " of a group of ", group.size));
    peer = std::find(members.begin(), members.end(), world) - members.begin();
  }
  if (peer < 0 || peer >= group.size)
    return absl::InvalidArgumentError(cat("root ", peer, " of a group of ", group.size));
  op.root = static_cast<int>(peer);
  if (op.kind == CollectiveKind::kSend) op.to = static_cast<int>(peer);
  if (op.kind == CollectiveKind::kRecv) op.from = static_cast<int>(peer);
  if (op.kind == CollectiveKind::kPermute) {
    const int64_t n = group.size, shift = int_param(step.params, "shift", 0), wrap = int_param(step.params, "wrap", 1);
    auto target = [&](const std::string& side, int64_t by) -> int {
      const std::vector<int64_t> listed = ints_param(step.params, side, {});
      if (static_cast<int64_t>(listed.size()) == n) {
        const int64_t to = listed[static_cast<size_t>(group.mine)];
        return to >= 0 && to < n ? static_cast<int>(to) : kNoPeer;
      }
      const int64_t to = group.mine + by;
      if (wrap == 0 && (to < 0 || to >= n)) return kNoPeer;
      return static_cast<int>(((to % n) + n) % n);
    };
    op.to = target("to", shift % n);
    op.from = target("from", -(shift % n));
  }
  bound.alone = alone_[step.id];
  bound.is_root = group.mine == op.root;
  return absl::OkStatus();
}

std::vector<Executor::Piece> Executor::pieces(const Step& step, int64_t group_size) {
  const int outputs = static_cast<int>(step.operands.size()) - step.inputs;
  std::vector<Piece> pieces;
  for (int k = 0; k < std::max(step.inputs, outputs); ++k) {
    Piece piece{k < step.inputs ? k : -1, k < outputs ? step.inputs + k : -1};
    const Operand& first = step.operands[static_cast<size_t>(piece.input < 0 ? piece.output : piece.input)];
    const Operand& last = step.operands[static_cast<size_t>(piece.output < 0 ? piece.input : piece.output)];
    const int64_t in = *element_count(first.shape), out = *element_count(last.shape);
    piece.count = step.name == "all_to_all" ? in / group_size : step.name == "all_gather" ? in : out;
    piece.bytes = std::min(operand_bytes(first), operand_bytes(last));
    pieces.push_back(piece);
  }
  return pieces;
}

// Before anything runs: a prologue reads them too.
absl::Status Executor::stage_coordinates() {
  for (const ProgramInput& input : program().inputs) {
    for (size_t a = 0; a < coordinates_.size() && input.kind == "coordinate"; ++a) {
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

absl::Status Executor::run(std::span<const ScheduleEntry> schedule,
                           absl::FunctionRef<absl::Status(int64_t, int64_t)> stage) {
  std::fill(staged_.begin(), staged_.end(), -1);
  if (profile_ && device_ != nullptr) {
    PARTITA_RETURN_IF_ERROR(device_->synchronize());
    PARTITA_RETURN_IF_ERROR(device_->take_stamps().status());
    PARTITA_RETURN_IF_ERROR(device_->stamp());
    stamps_begin_ = StepProfile::Clock::now();
    stamped_.clear();
  }
  for (const ScheduleEntry& entry : schedule) {
    const SegmentKind kind = program().segments[static_cast<size_t>(entry.segment)].kind;
    int64_t& staged = staged_[static_cast<size_t>(entry.slot)];
    if (staged != entry.micro_batch &&
        (kind == SegmentKind::kForward || kind == SegmentKind::kBackward || kind == SegmentKind::kEvaluation)) {
      for (const ProgramInput& input : program().inputs) {
        if (input.kind == "micro_batch")
          PARTITA_RETURN_IF_ERROR(stage_scalar(input.operand, entry.slot, entry.micro_batch));
      }
      PARTITA_RETURN_IF_ERROR(stage(entry.micro_batch, entry.slot));
      staged = entry.micro_batch;
    }
    PARTITA_RETURN_IF_ERROR(run_segment(entry));
  }
  PARTITA_RETURN_IF_ERROR(finish_sends());
  if (device_ != nullptr) PARTITA_RETURN_IF_ERROR(device_->synchronize());
  if (profile_ && device_ != nullptr) PARTITA_RETURN_IF_ERROR(add_stamped());
  host_copies_.clear();
  return device_communicator_ != nullptr ? device_communicator_->failure() : absl::OkStatus();
}

absl::Status Executor::run_segment(const ScheduleEntry& entry) {
  std::vector<BoundStep>& steps = segments_[static_cast<size_t>(entry.segment)];
  for (size_t k = 0; k < steps.size();) {
    BoundStep& step = steps[k];
    const size_t together = profile_ ? 1 : std::max<size_t>(step.run, 1);
    absl::Status status = profile_       ? run_profiled(step, entry)
                          : together > 1 ? run_together({&step, together}, entry.slot)
                                         : run_step(step, entry.slot);
    if (status.ok() && device_ != nullptr) status = device_->failure();
    if (!status.ok()) return with_context(status, describe_step(program(), *step.step));
    k += together;
  }
  return absl::OkStatus();
}

// A device's own clock tells the time of its steps: waiting for each would make it idle between them. Of a collective
// it shows what the others had to wait for.
absl::Status Executor::run_profiled(BoundStep& step, const ScheduleEntry& entry) {
  if (step.is_joined) return absl::OkStatus();
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
    add_joint(*stamped_[k].step, stamped_[k].entry, at(2 * k + 1), at(2 * k + 2));
  stamped_.clear();
  return absl::OkStatus();
}

// The time of a joint launch goes to its steps by their bytes.
void Executor::add_joint(const BoundStep& step, const ScheduleEntry& entry, StepProfile::Clock::time_point begin,
                         StepProfile::Clock::time_point end) {
  std::span<const Step* const> steps = step.joint_steps;
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
      if (step.is_joined) break;
      if (!step.joint.empty()) {
        step.joint[step.joint.size() > 1 ? static_cast<size_t>(slot) : 0]->run({});
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
  for (const Piece& piece : step.pieces) {
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
