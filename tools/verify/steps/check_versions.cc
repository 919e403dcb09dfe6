#include "tools/verify/steps/check_versions.h"

#include <algorithm>
#include <set>

#include "base/quote.h"
#include "base/status.h"
#include "tools/verify/layout/mismatch.h"

namespace partita::verifier {
namespace {

using runtime::ScheduleEntry;

Segment kind_of(const runtime::Program& program, const ScheduleEntry& e) {
  return program.segments[static_cast<size_t>(e.segment)].kind;
}

absl::StatusOr<int64_t> most_delay(const runtime::Program& program) {
  int64_t updates = 0, delay = 0;
  const ScheduleEntry* before = nullptr;
  for (const ScheduleEntry& e : program.schedule) {
    const Segment kind = kind_of(program, e);
    if (kind == Segment::kForward) delay = std::max(delay, e.micro_batch - updates);
    if (kind == Segment::kReduce) {
      if (before == nullptr || kind_of(program, *before) != Segment::kBackward ||
          before->micro_batch != e.micro_batch || before->slot != e.slot)
        return differs("schedule: expected the update of micro-batch ", e.micro_batch,
                       " right after its backward part");
      if (e.micro_batch != updates)
        return differs("schedule: expected the update of micro-batch ", updates, ", found that of ", e.micro_batch);
      ++updates;
    }
    before = &e;
  }
  return delay;
}

absl::Status check_reads(const Graph& g) {
  std::vector<bool> current(g.values.size(), false), counts(g.values.size(), false);
  for (const State& s : g.states) {
    const Node* next = s.next == kNoValue ? nullptr : g.producer(s.next);
    current[s.value] = next != nullptr && next->segment > Segment::kBackward;
    counts[s.value] = s.kind == StateKind::kStep;
  }
  auto is_current = [&](ValueId v) { return v != kNoValue && current[v]; };
  for (const Node& node : g.nodes) {
    if (node.segment > Segment::kBackward || std::none_of(node.inputs.begin(), node.inputs.end(), is_current)) continue;
    // The count of steps is that of the step's start, so that it is the same on all stages.
    const bool at_start = node.segment == Segment::kPrologue;
    if (node.op->name == "stash" && at_start == counts[node.inputs[0]] && node.segment != Segment::kBackward) continue;
    const bool copies =
        node.segment == Segment::kForward && std::all_of(node.inputs.begin(), node.inputs.end(), is_current);
    if (!copies)
      return differs(quote(g.origin(node)), " (", node.op->name, ", ", enum_name(node.segment),
                     "): expected updated values as they were stashed, found a read of one as it is");
    for (ValueId v : node.outputs) current[v] = true;
  }
  return absl::OkStatus();
}

}  // namespace

bool updates_each(const runtime::Program& program) {
  std::set<int32_t> seen;
  return std::any_of(program.schedule.begin(), program.schedule.end(), [&](const ScheduleEntry& e) {
    return kind_of(program, e) == Segment::kReduce && !seen.insert(e.segment).second;
  });
}

absl::StatusOr<std::vector<int64_t>> check_versions(const ProgramSet& set) {
  std::vector<int64_t> delays;
  for (size_t k = 0; k < set.programs.size(); ++k) {
    const RankProgram& p = set.programs[k];
    if (!updates_each(p.program))
      return differs("stage ", k, ": expected updates with each micro-batch, as on the other stages");
    auto delay = most_delay(p.program);
    absl::Status status = delay.status();
    if (status.ok() && *delay > 0) status = check_reads(p.code);
    if (!status.ok()) return differs("stage ", k, ": ", status.message());
    delays.push_back(*delay);
  }
  return delays;
}

Graph as_one_micro_batch(Graph serial) {
  for (Node& node : serial.nodes) {
    if (node.segment == Segment::kPrologue) node.segment = Segment::kForward;
  }
  return serial;
}

}  // namespace partita::verifier
