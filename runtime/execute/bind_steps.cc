// A program's steps bound to one rank: operands become addresses, kernels are found, groups and peers resolved.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/box.h"
#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/execute/executor.h"
#include "runtime/program/batched_launches.h"
#include "runtime/program/params.h"
#include "runtime/program/placement.h"
#include "runtime/program/program_check.h"
#include "runtime/program/sides.h"

namespace partita::runtime {
namespace {

// Below this a step's memory traffic costs less than waking the team.
constexpr int64_t kSerialBytes = 128 << 10;

}  // namespace

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
  bind_uses();
  if (communicator_ != nullptr) PARTITA_RETURN_IF_ERROR(communicator_->connect(operations()));
  if (device_ != nullptr) {
    PARTITA_ASSIGN_OR_RETURN(device_scratch_, device_->allocate_scratch());
  }
  return with_context(config.scratch->allocate(), "kernel scratch memory");
}

// Those that are not of this rank alone.
std::vector<CollectiveOp> Executor::operations() const {
  std::vector<CollectiveOp> found;
  for (const std::vector<BoundStep>& steps : segments_) {
    for (const BoundStep& step : steps) {
      if (step.step->kind == StepKind::kCollectiveStart && !step.alone) found.push_back(step.collective);
    }
  }
  return found;
}

// Computation between collectives, steps of the host and copies to and from its memory.
absl::Status Executor::bind_runs(const ProgramSegment& segment, std::vector<BoundStep>& steps) {
  for (const auto& [begin, end] : device_runs(program(), segment)) {
    const std::span<const Step> of_run(segment.steps.data() + begin, end - begin);
    const std::span<BoundStep> bound(steps.data() + begin, end - begin);
    for (const std::vector<size_t>& launch : batched_launches(of_run, batched_kinds(of_run), program().slots)) {
      if (of_run[launch[0]].params.count(kBatchedParam) == 0) continue;
      const absl::Status status = bind_batched(bound, launch);
      if (!status.ok()) return with_context(status, describe_step(program(), of_run[launch[0]]));
    }
    bound[0].run = end - begin;
    if (bound[0].run > 1) bound[0].replay = device_->replays(static_cast<size_t>(program().slots));
  }
  return absl::OkStatus();
}

// Where something is copied to or from the host's memory, what everything else uses of the device's.
void Executor::bind_uses() {
  const auto copies = [](const BoundStep& bound) { return copies_host_memory(*bound.step); };
  const auto has_copies = [&](const auto& steps) { return std::any_of(steps.begin(), steps.end(), copies); };
  if (device_ == nullptr || std::none_of(segments_.begin(), segments_.end(), has_copies)) return;
  std::vector<size_t> of_start(alone_.size(), kNoUses);  // by the start's number in the program
  for (std::vector<BoundStep>& steps : segments_) {
    for (size_t k = 0; k < steps.size(); ++k) {
      const bool starts = steps[k].step->kind == StepKind::kCollectiveStart;
      if (starts || steps[k].run > 0) steps[k].uses = add_uses({&steps[k], std::max<size_t>(steps[k].run, 1)});
      if (starts) of_start[steps[k].step->id] = steps[k].uses;
    }
  }
  for (std::vector<BoundStep>& steps : segments_) {
    for (BoundStep& step : steps) {
      if (step.step->kind == StepKind::kCollectiveWait)
        step.uses = of_start[static_cast<size_t>(int_param(step.step->params, "of", 0))];
    }
  }
}

// What the steps use together, for each slot.
size_t Executor::add_uses(std::span<const BoundStep> steps) {
  const size_t first = uses_.size();
  for (int64_t slot = 0; slot < program().slots; ++slot) {
    DeviceMemoryUse& use = uses_.emplace_back();
    for (const BoundStep& bound : steps) {
      for (size_t k = 0; k < bound.step->operands.size(); ++k) {
        const Operand& operand = bound.step->operands[k];
        if (operand.dtype == DType::kInvalid || !on_device(operand)) continue;
        const std::byte* begin = address(operand, slot);
        const bool reads = k < static_cast<size_t>(bound.step->inputs);
        (reads ? use.reads : use.writes).push_back({begin, begin + operand_bytes(operand)});
      }
    }
    for (std::vector<DeviceMemoryUse::Range>* ranges : {&use.reads, &use.writes}) {
      std::sort(ranges->begin(), ranges->end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
      std::vector<DeviceMemoryUse::Range> joined;
      for (const DeviceMemoryUse::Range& r : *ranges) {
        if (!joined.empty() && r.begin <= joined.back().end) {
          joined.back().end = std::max(joined.back().end, r.end);
        } else {
          joined.push_back(r);
        }
      }
      *ranges = std::move(joined);
    }
  }
  return first;
}

absl::Status Executor::bind_batched(std::span<BoundStep> run, const std::vector<size_t>& launch) {
  BoundStep& first = run[launch[0]];
  bool moves = false;
  for (size_t k : launch) {
    run[k].is_batched = k != launch[0];
    first.batched_steps.push_back(run[k].step);
    moves = moves || run[k].slot_buffers > 0;
  }
  for (size_t slot = 0; slot < (moves ? static_cast<size_t>(program().slots) : 1); ++slot) {
    std::vector<std::byte*> addresses;
    for (size_t k : launch) {
      const auto begin = buffers_.begin() + static_cast<int64_t>(run[k].buffers + slot * run[k].slot_buffers);
      addresses.insert(addresses.end(), begin, begin + static_cast<int64_t>(run[k].step->operands.size()));
    }
    PARTITA_ASSIGN_OR_RETURN(first.batched.emplace_back(),
                             device_->prepare_batched(program(), first.batched_steps, addresses));
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
      if (by_device && step.params.count(kBatchedParam) > 0) break;  // bind_batched()
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

// Params: group; reduce: sum, max, min; ordered: 1 where a sum has one order on any ranks; elements: CollectiveOp's, of
// an all_reduce; broadcast: root (group rank); send, recv: peer (peer_rank()); permute: shift (to rank + shift, from
// rank - shift, around the end unless wrap is 0), or to and from, lists of one group rank per member, -1 for none.
absl::Status Executor::bind_collective(const Step& step, BoundStep& bound) {
  const Group& group = groups_[static_cast<size_t>(int_param(step.params, "group", 0))];
  CollectiveOp& op = bound.collective;
  bound.ticket = ticket_of_step_[step.id];
  op.kind = *parse_enum<CollectiveKind>(step.name);  // check_program() knows them
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
  const std::optional<ReduceOp> reduces = parse_enum<ReduceOp>(reduce);
  if (!reduces) return absl::InvalidArgumentError(cat("unknown reduction ", quote(reduce)));
  op.reduce = *reduces;
  op.in_order = int_param(step.params, "ordered", 0) != 0;
  op.elements = ints_param(step.params, "elements", {});

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

std::vector<CollectivePiece> Executor::pieces(const Step& step, int64_t group_size) {
  const int outputs = static_cast<int>(step.operands.size()) - step.inputs;
  std::vector<CollectivePiece> pieces;
  for (int k = 0; k < std::max(step.inputs, outputs); ++k) {
    CollectivePiece piece{k < step.inputs ? k : -1, k < outputs ? step.inputs + k : -1};
    const Operand& first = step.operands[static_cast<size_t>(piece.input < 0 ? piece.output : piece.input)];
    const Operand& last = step.operands[static_cast<size_t>(piece.output < 0 ? piece.input : piece.output)];
    const int64_t in = *element_count(first.shape), out = *element_count(last.shape);
    piece.count = step.name == "all_to_all" ? in / group_size : step.name == "all_gather" ? in : out;
    piece.bytes = std::min(operand_bytes(first), operand_bytes(last));
    pieces.push_back(piece);
  }
  return pieces;
}

}  // namespace partita::runtime
