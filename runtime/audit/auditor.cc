#include "runtime/audit/auditor.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "base/cat.h"
#include "base/checksum.h"
#include "base/quote.h"
#include "base/status.h"
#include "runtime/communicate/exchanges.h"
#include "runtime/program/placement.h"

namespace partita::runtime {
namespace {

constexpr int64_t kAuditsPerRerun = 2;

constexpr const char* kAdvice =
    "the numbers of a rank are damaged (memory, processor or link): take its host out, and go on with --resume; "
    "checkpoints are compared before they are written";

// The axes of the mesh along which ranks of one program hold the same box.
std::vector<int32_t> shared_axes(const Program& program, const Placement& placement) {
  std::vector<bool> splits(program.mesh.size(), false);
  for (const auto& dim : placement.axes) {
    for (const AxisStride& a : dim) splits[static_cast<size_t>(a.axis)] = true;
  }
  std::vector<int32_t> shared;
  const int stages = stage_axis(program.mesh);
  for (size_t a = 0; a < splits.size(); ++a) {
    if (!splits[a] && static_cast<int>(a) != stages) shared.push_back(static_cast<int32_t>(a));
  }
  return shared;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Auditor>> Auditor::open(Executor& executor, Communicator* communicator,
                                                       RecordingCommunicator* recorder, int64_t every) {
  std::unique_ptr<Auditor> auditor(new Auditor(executor, communicator, recorder, every));
  PARTITA_RETURN_IF_ERROR(auditor->group_states());
  return auditor;
}

absl::Status Auditor::group_states() {
  if (communicator_ == nullptr) return absl::OkStatus();
  const Program& program = executor_.program();
  std::map<std::vector<int32_t>, std::vector<size_t>> by_axes;
  for (size_t k = 0; k < program.states.size(); ++k) {
    const ProgramState& s = program.states[k];
    if (s.kind == StateKind::kAccumulator) continue;  // a rank's own part of a sum
    by_axes[shared_axes(program, s.placement)].push_back(k);
  }
  for (auto& [axes, states] : by_axes) {
    std::vector<int> ranks = group_ranks(program.mesh, {axes}, executor_.rank());
    if (ranks.size() < 2) continue;
    PARTITA_ASSIGN_OR_RETURN(const GroupId group, communicator_->create_group(ranks));
    replicas_.push_back({std::move(states), std::move(ranks), group});
  }
  return absl::OkStatus();
}

const char* Auditor::name_of(size_t state) const { return executor_.program().states[state].name.c_str(); }

absl::StatusOr<std::vector<uint64_t>> Auditor::checksums() const {
  PARTITA_RETURN_IF_ERROR(executor_.fetch_states());
  std::vector<uint64_t> sums;
  for (const ProgramState& s : executor_.program().states) sums.push_back(checksum64(executor_.memory(s.operand)));
  return sums;
}

absl::Status Auditor::run_step(int64_t step, absl::FunctionRef<absl::Status()> run) {
  const bool twice = audits_++ % kAuditsPerRerun == 0;
  std::vector<std::byte> before;
  if (twice) {
    PARTITA_RETURN_IF_ERROR(executor_.fetch_states());
    before = states();
  }
  PARTITA_ASSIGN_OR_RETURN(Trace last, traced(step, run));
  if (twice) {
    const Trace first = std::move(last);
    PARTITA_RETURN_IF_ERROR(restore(before));
    PARTITA_ASSIGN_OR_RETURN(last, traced(step, run));
    PARTITA_RETURN_IF_ERROR(compare_runs(step, first, last));
  }
  return compare_replicas(step + 1, last.states);
}

absl::StatusOr<Auditor::Trace> Auditor::traced(int64_t step, absl::FunctionRef<absl::Status()> run) {
  if (recorder_ != nullptr) recorder_->record(true);
  PARTITA_RETURN_IF_ERROR(run());
  Trace trace;
  PARTITA_ASSIGN_OR_RETURN(trace.states, checksums());
  if (recorder_ != nullptr) {
    trace.collectives = recorder_->take();
    recorder_->record(false);
  }
  PARTITA_RETURN_IF_ERROR(compare_messages(step, trace.collectives));
  return trace;
}

std::vector<std::byte> Auditor::states() const {
  std::vector<std::byte> all;
  for (const ProgramState& s : executor_.program().states) {
    const std::span<const std::byte> own = executor_.memory(s.operand);
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

absl::Status Auditor::restore(std::span<const std::byte> saved) {
  for (const ProgramState& s : executor_.program().states) {
    const std::span<std::byte> own = executor_.memory(s.operand);
    if (!own.empty()) std::memcpy(own.data(), saved.data(), own.size());
    saved = saved.subspan(own.size());
  }
  return executor_.put_states();
}

// Of all ranks of the group, one after the other.
absl::StatusOr<std::vector<uint64_t>> Auditor::gathered(const Replicas& r, std::span<const uint64_t> mine) {
  std::vector<uint64_t> all(mine.size() * r.ranks.size());
  PARTITA_RETURN_IF_ERROR(communicator_->run({.kind = CollectiveKind::kAllGather,
                                              .group = r.group,
                                              .dtype = DType::kI64,
                                              .count = static_cast<int64_t>(mine.size()),
                                              .input = mine.data(),
                                              .output = all.data(),
                                              .label = "audit of states"}));
  return all;
}

absl::Status Auditor::compare_replicas(int64_t steps_taken) {
  if (communicator_ == nullptr) return absl::OkStatus();
  PARTITA_ASSIGN_OR_RETURN(const std::vector<uint64_t> sums, checksums());
  return compare_replicas(steps_taken, sums);
}

absl::Status Auditor::compare_replicas(int64_t steps_taken, std::span<const uint64_t> sums) {
  if (communicator_ == nullptr) return absl::OkStatus();
  absl::Status found;
  for (const Replicas& r : replicas_) {
    std::vector<uint64_t> mine;
    for (size_t s : r.states) mine.push_back(sums[s]);
    const uint64_t joined = checksum64(std::as_bytes(std::span(mine)));
    PARTITA_ASSIGN_OR_RETURN(const std::vector<uint64_t> joined_of_all, gathered(r, {&joined, 1}));
    if (minority<uint64_t>(joined_of_all).empty()) continue;
    PARTITA_ASSIGN_OR_RETURN(const std::vector<uint64_t> all, gathered(r, mine));
    if (found.ok()) found = compare(r, all, cat("after step ", steps_taken));
  }
  return all_ok(communicator_, found, cat("audit after step ", steps_taken));
}

absl::Status Auditor::compare(const Replicas& r, std::span<const uint64_t> all, std::string_view when) {
  std::vector<size_t> states;
  std::vector<int> ranks;
  for (size_t k = 0; k < r.states.size(); ++k) {
    std::vector<uint64_t> of_state;
    for (size_t rank = 0; rank < r.ranks.size(); ++rank) of_state.push_back(all[rank * r.states.size() + k]);
    const std::vector<int> others = minority<uint64_t>(of_state);
    if (others.empty()) continue;
    states.push_back(r.states[k]);
    for (int place : others) ranks.push_back(r.ranks[static_cast<size_t>(place)]);
  }
  if (states.empty()) return absl::OkStatus();
  const std::string more = states.size() == 1 ? "" : cat(" and ", states.size() - 1, " more states");
  // Two against each other: nothing says which of them is right.
  const std::string who = r.ranks.size() == 2 ? cat(describe_ranks(r.ranks), " hold different bits of ")
                                              : cat(describe_ranks(std::move(ranks)), " differ from the others of ",
                                                    describe_ranks(r.ranks), " in ");
  return absl::AbortedError(cat("audit ", when, ": ", who, quote(name_of(states.front())), more, "; ", kAdvice));
}

// A difference spreads through collectives to all ranks. It comes from the rank whose own part of one differs first;
// where no part does, from those whose states differ at the end.
absl::Status Auditor::compare_runs(int64_t step, const Trace& first, const Trace& second) {
  const size_t count = std::min(first.collectives.size(), second.collectives.size());
  size_t at = 0;
  while (at < count && first.collectives[at].checksum == second.collectives[at].checksum) ++at;
  const bool in_collective = at < count;
  const auto state = std::mismatch(first.states.begin(), first.states.end(), second.states.begin());
  const bool in_state = state.first != first.states.end();
  const size_t which = static_cast<size_t>(state.first - first.states.begin());
  constexpr int64_t kNever = int64_t{1} << 62, kAtTheEnd = kNever - 1;
  // What a rank received in other bits was damaged by somebody else.
  const bool own = in_collective ? !first.collectives[at].received : in_state;
  int64_t when = !own ? kNever : in_collective ? static_cast<int64_t>(at) : kAtTheEnd;
  PARTITA_ASSIGN_OR_RETURN(const std::vector<int64_t> of_all, all_gather(communicator_, {&when, 1}, "audit of a step"));
  const int64_t earliest = of_all.empty() ? when : *std::min_element(of_all.begin(), of_all.end());
  absl::Status found;
  if (when == earliest && when != kNever) {
    const std::string what =
        in_collective ? cat("what it put into ", first.collectives[at].what) : quote(name_of(which));
    found = absl::AbortedError(cat("audit of step ", step, ": rank ", executor_.rank(),
                                   " computed the step twice and got other bits of ", what, "; ", kAdvice));
  }
  return all_ok(communicator_, found, cat("audit of step ", step));
}

// Each rank tells those that it sent to what it sent, lane after lane.
absl::Status Auditor::compare_messages(int64_t step, const std::vector<CollectiveRecord>& records) {
  if (communicator_ == nullptr) return absl::OkStatus();
  using Messages = std::vector<const CollectiveRecord*>;
  std::map<int, Messages> sent, received;
  for (const CollectiveRecord& r : records) {
    if (r.peer != kNoPeer) (r.received ? received : sent)[r.peer].push_back(&r);
  }
  auto by_lane = [](Messages& messages) {
    std::stable_sort(messages.begin(), messages.end(), [](const auto* a, const auto* b) { return a->lane < b->lane; });
  };
  std::vector<Ticket> tickets;
  std::map<int, std::vector<uint64_t>> told, heard;  // by peer
  auto start = [&](CollectiveKind kind, int peer, std::vector<uint64_t>& sums) {
    const bool sends = kind == CollectiveKind::kSend;
    CollectiveOp op{.kind = kind, .dtype = DType::kI64, .count = static_cast<int64_t>(sums.size())};
    op.label = "audit of messages";
    if (sends) op.input = sums.data();
    if (!sends) op.output = sums.data();
    (sends ? op.to : op.from) = peer;
    tickets.push_back(communicator_->start(std::move(op)));
  };
  for (auto& [peer, messages] : sent) {
    by_lane(messages);
    for (const CollectiveRecord* r : messages) told[peer].push_back(r->checksum);
    start(CollectiveKind::kSend, peer, told[peer]);
  }
  for (auto& [peer, messages] : received) {
    by_lane(messages);
    heard[peer].resize(messages.size());
    start(CollectiveKind::kRecv, peer, heard[peer]);
  }
  for (Ticket ticket : tickets) PARTITA_RETURN_IF_ERROR(communicator_->wait(ticket));
  absl::Status found;
  for (const auto& [peer, messages] : received) {
    for (size_t k = 0; found.ok() && k < messages.size(); ++k) {
      if (heard[peer][k] == messages[k]->checksum) continue;
      found = absl::AbortedError(cat("audit of step ", step, ": ", messages[k]->what, " reached rank ",
                                     executor_.rank(), " in other bits than rank ", peer, " had sent; ", kAdvice));
    }
  }
  return all_ok(communicator_, found, cat("messages of step ", step));
}

}  // namespace partita::runtime
