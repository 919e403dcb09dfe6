#include "tools/compare/captures.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "runtime/execute/executor.h"
#include "runtime/program/params.h"
#include "runtime/program/placement.h"
#include "tools/verify/kernels/graph_expressions.h"
#include "tools/verify/layout/serial_values.h"

namespace partita {

using runtime::Executor;
using runtime::ScheduleEntry;
using runtime::Step;
using runtime::StepKind;

Captures::Captures(const verifier::ProgramSet& set, int64_t unseen) : set_(set), unseen_(unseen) {
  for (const verifier::RankProgram& p : set.programs) {
    const Graph& g = p.code;
    Stage& stage = stages_.emplace_back();
    auto each = [](const Node* node) {
      return node != nullptr && verifier::runs_of(node->segment) == verifier::Runs::kEach;
    };
    for (const Value& v : g.values) {
      const Node* node = v.producer < 0 ? nullptr : &g.nodes[static_cast<size_t>(v.producer)];
      // A sum over micro-batches is what it is to be after the last one.
      stage.kinds.push_back(each(node) && !node->op->sums_micro_batches ? Kind::kEach : Kind::kOnce);
    }
    for (const Constant& c : g.constants) stage.kinds[static_cast<size_t>(c.value)] = Kind::kNone;
    for (const GraphInput& in : g.inputs)
      stage.kinds[static_cast<size_t>(in.value)] = in.kind == InputKind::kData ? Kind::kEach : Kind::kNone;
    for (const State& s : g.states) {
      const bool changes = s.next != kNoValue && each(g.producer(s.next));
      stage.kinds[static_cast<size_t>(s.value)] = s.kind == StateKind::kAccumulator ? Kind::kNone
                                                  : changes                         ? Kind::kEach
                                                                                    : Kind::kOnce;
    }
    for (const auto& segment : p.program.segments) {
      for (const Step& step : segment.steps) {
        if (step.kind == StepKind::kCollectiveStart) stage.starts[step.id] = &step;
      }
    }
  }
  const auto& mesh = set.programs.front().program.mesh;
  for (int64_t r = 0; r < runtime::mesh_size(mesh); ++r)
    ranks_.push_back({static_cast<size_t>(runtime::stage_of(mesh, r)), runtime::mesh_coordinates(mesh, r)});
}

int64_t Captures::kept_under(size_t stage, int value, int64_t micro_batch) const {
  return stages_[stage].kinds[static_cast<size_t>(value)] == Kind::kEach ? micro_batch : kWholeStep;
}

void Captures::begin(const Executor& executor) {
  Rank& rank = ranks_[static_cast<size_t>(executor.rank())];
  if (rank.begun++ <= unseen_) return;
  std::unique_lock lock(mutex_);
  const int64_t step = looked_at_;
  ++waiting_;
  changed_.notify_all();
  changed_.wait(lock, [&] { return cancelled_ || looked_at_ > step; });
}

bool Captures::wait_for_step() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ended_ || waiting_ == ranks(); });
  return waiting_ == ranks();
}

void Captures::go_on() {
  std::lock_guard lock(mutex_);
  for (Rank& rank : ranks_) rank.values.clear(), rank.misreads.clear();
  waiting_ = 0;
  ++looked_at_;
  changed_.notify_all();
}

void Captures::cancel() {
  std::lock_guard lock(mutex_);
  cancelled_ = true;
  changed_.notify_all();
}

void Captures::end(bool complete) {
  std::lock_guard lock(mutex_);
  ended_ = true;
  if (complete && is_seen(ranks_.front())) waiting_ = ranks();
  changed_.notify_all();
}

absl::Status Captures::before(const Executor& executor, const Step& step, const ScheduleEntry& entry) {
  if (cancelled_) return absl::CancelledError("the comparison has ended");
  Rank& rank = ranks_[static_cast<size_t>(executor.rank())];
  if (!is_seen(rank)) return absl::OkStatus();
  const std::vector<int>& values = set_.programs[rank.stage].claims[step.id].values;
  for (size_t k = 0; k < static_cast<size_t>(step.inputs) && k < values.size(); ++k) {
    const runtime::Operand& o = step.operands[k];
    if (values[k] < 0 || o.dtype == DType::kInvalid || o.address.region == runtime::Region::kConstant ||
        stages_[rank.stage].kinds[static_cast<size_t>(values[k])] == Kind::kNone)
      continue;
    PARTITA_RETURN_IF_ERROR(executor.fetch(o, entry.slot));
    const std::span<const std::byte> bytes = executor.memory(o, entry.slot);
    const int64_t micro_batch = kept_under(rank.stage, values[k], entry.micro_batch);
    auto [at, fresh] = rank.values.try_emplace({values[k], micro_batch});
    if (fresh) {
      at->second = {{bytes.begin(), bytes.end()}, step.id, false};
    } else if (!std::equal(bytes.begin(), bytes.end(), at->second.bytes.begin(), at->second.bytes.end())) {
      rank.misreads.push_back({step.id, k, values[k], micro_batch});
    }
  }
  return absl::OkStatus();
}

absl::Status Captures::after(const Executor& executor, const Step& step, const ScheduleEntry& entry) {
  const Rank& rank = ranks_[static_cast<size_t>(executor.rank())];
  if (step.kind == StepKind::kCollectiveStart || !is_seen(rank)) return absl::OkStatus();
  if (step.kind != StepKind::kCollectiveWait) return write(executor, step, entry);
  const Stage& stage = stages_[rank.stage];
  auto start = stage.starts.find(runtime::int_param(step.params, "of", -1));
  return start == stage.starts.end() ? absl::OkStatus() : write(executor, *start->second, entry);
}

absl::Status Captures::write(const Executor& executor, const Step& step, const ScheduleEntry& entry) {
  Rank& rank = ranks_[static_cast<size_t>(executor.rank())];
  const Graph& graph = set_.programs[rank.stage].code;
  const Claim& claim = set_.programs[rank.stage].claims[step.id];
  if (step.kind == StepKind::kCollectiveStart && claim.values.empty()) return write_joined(executor, step, entry);
  for (size_t k = static_cast<size_t>(step.inputs); k < step.operands.size() && k < claim.values.size(); ++k) {
    const runtime::Operand& o = step.operands[k];
    if (claim.values[k] < 0 || o.dtype == DType::kInvalid) continue;
    // A copy names the state that it goes to: as it was read, it has been kept.
    if (graph.values[static_cast<size_t>(claim.values[k])].producer < 0) continue;
    PARTITA_RETURN_IF_ERROR(executor.fetch(o, entry.slot));
    keep(rank, claim.values[k], entry, executor.memory(o, entry.slot), step.id);
  }
  return absl::OkStatus();
}

// A collective over values that lie side by side, each at the next multiple of 64 bytes.
absl::Status Captures::write_joined(const Executor& executor, const Step& step, const ScheduleEntry& entry) {
  Rank& rank = ranks_[static_cast<size_t>(executor.rank())];
  const verifier::RankProgram& p = set_.programs[rank.stage];
  const Claim& claim = p.claims[step.id];
  if (claim.node < 0 || step.operands.size() != 2) return absl::OkStatus();
  const runtime::Operand& o = step.operands[1];
  PARTITA_RETURN_IF_ERROR(executor.fetch(o, entry.slot));
  const std::span<const std::byte> all = executor.memory(o, entry.slot);
  size_t at = 0;
  for (ValueId v : p.code.nodes[static_cast<size_t>(claim.node)].outputs) {
    const size_t bytes = static_cast<size_t>(byte_size(p.code.type(v)));
    if (at + bytes > all.size()) break;
    keep(rank, v, entry, all.subspan(at, bytes), step.id);
    at += (bytes + 63) / 64 * 64;
  }
  return absl::OkStatus();
}

void Captures::keep(Rank& rank, int value, const ScheduleEntry& entry, std::span<const std::byte> bytes,
                    int64_t step) const {
  if (stages_[rank.stage].kinds[static_cast<size_t>(value)] == Kind::kNone) return;
  rank.values[{value, kept_under(rank.stage, value, entry.micro_batch)}] = {{bytes.begin(), bytes.end()}, step, true};
}

}  // namespace partita
