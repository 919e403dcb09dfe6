// Faults of the field in steps, buffers and schedules.
#include <algorithm>
#include <utility>

#include "runtime/program/params.h"
#include "tools/mutation/field_faults.h"
#include "tools/mutation/mutations.h"
#include "tools/verify/steps/contents.h"

namespace partita::field {
namespace {

using runtime::Operand;
using runtime::ProgramSegment;
using runtime::Step;
using runtime::StepKind;
using verifier::Bundle;
using verifier::RankProgram;

bool computes(const Step& s) { return s.kind == StepKind::kKernel || s.kind == StepKind::kLibrary; }

// The first step that `fits`, with its segment; null where there is none.
template <typename Fits>
std::pair<ProgramSegment*, size_t> first(RankProgram& p, Fits fits) {
  for (ProgramSegment& segment : p.program.segments) {
    for (size_t k = 0; k < segment.steps.size(); ++k) {
      if (fits(segment, k)) return {&segment, k};
    }
  }
  return {nullptr, 0};
}

bool is_wait(const ProgramSegment& segment, size_t k) { return segment.steps[k].kind == StepKind::kCollectiveWait; }

// Two steps that follow each other change places, with what they claim.
void exchange(RankProgram& p, ProgramSegment& segment, size_t k) {
  Step &one = segment.steps[k], &next = segment.steps[k + 1];
  std::swap(p.claims[one.id], p.claims[next.id]);
  std::swap(one, next);
  std::swap(one.id, next.id);
}

bool ends(const Step& wait, const Step& start) {
  return wait.kind == StepKind::kCollectiveWait && runtime::int_param(wait.params, "of", -1) == start.id;
}

// A collective and a step that runs while it is under way.
struct UnderWay {
  const Step* start = nullptr;
  Step* other = nullptr;
};
UnderWay under_way(RankProgram& p) {
  for (ProgramSegment& segment : p.program.segments) {
    for (size_t k = 0; k < segment.steps.size(); ++k) {
      if (segment.steps[k].kind != StepKind::kCollectiveStart) continue;
      for (size_t n = k + 1; n < segment.steps.size() && !ends(segment.steps[n], segment.steps[k]); ++n) {
        if (computes(segment.steps[n])) return {&segment.steps[k], &segment.steps[n]};
      }
    }
  }
  return {};
}

// No other step refers to it by its number.
bool may_pass(const Step& s) { return s.kind != StepKind::kCollectiveStart; }

bool reads(const Step& s, const Operand& what) {
  return std::any_of(s.operands.begin(), s.operands.begin() + s.inputs,
                     [&](const Operand& o) { return verifier::range_of(o, 0).overlaps(verifier::range_of(what, 0)); });
}

}  // namespace

bool no_wait(Bundle& b) {
  const auto [segment, k] = first(b.programs[0], is_wait);
  if (segment == nullptr) return false;
  remove_step(b, segment->steps[k].id);
  return true;
}

bool reads_early(Bundle& b) {
  const auto [segment, k] = first(b.programs[0], [](const ProgramSegment& s, size_t n) {
    return is_wait(s, n) && n + 1 < s.steps.size() && computes(s.steps[n + 1]);
  });
  if (segment == nullptr) return false;
  exchange(b.programs[0], *segment, k);
  return true;
}

bool buffer_reused(Bundle& b) {
  const auto [start, other] = under_way(b.programs[0]);
  if (start == nullptr) return false;
  other->operands.back().address = start->operands.back().address;
  return true;
}

bool operand_overwritten(Bundle& b) {
  const auto [start, other] = under_way(b.programs[0]);
  if (start == nullptr) return false;
  other->operands.back().address = start->operands.front().address;
  return true;
}

// A step of the host reads what a copy brings from the device before the copy.
bool reload_first(Bundle& b) {
  RankProgram& p = b.programs[0];
  for (ProgramSegment& segment : p.program.segments) {
    for (size_t k = 0; k < segment.steps.size(); ++k) {
      if (segment.steps[k].kind != StepKind::kCopy) continue;
      const Operand to = segment.steps[k].operands[1];
      size_t reader = k + 1;
      while (reader < segment.steps.size() && may_pass(segment.steps[reader]) && !reads(segment.steps[reader], to))
        ++reader;
      if (reader == segment.steps.size() || !computes(segment.steps[reader])) continue;
      for (size_t at = k; at < reader; ++at) exchange(p, segment, at);
      return true;
    }
  }
  return false;
}

// The last stage takes the first two micro-batches in another order than they are sent in.
bool other_order(Bundle& b) {
  runtime::Program& last = b.programs.back().program;
  std::vector<size_t> forward;
  for (size_t k = 0; k < last.schedule.size(); ++k) {
    if (last.segments[static_cast<size_t>(last.schedule[k].segment)].kind == Segment::kForward) forward.push_back(k);
  }
  if (forward.size() < 2) return false;
  std::swap(last.schedule[forward[0]], last.schedule[forward[1]]);
  return true;
}

bool other_peer(Bundle& b) {
  const auto [segment, k] = first(b.programs.back(), [](const ProgramSegment& s, size_t n) {
    return s.kind == Segment::kForward && s.steps[n].name == "recv";
  });
  if (segment == nullptr) return false;
  runtime::Param& peer = segment->steps[k].params.at("peer");
  peer = std::get<int64_t>(peer) + 1;
  return true;
}

bool one_slot(Bundle& b) {
  if (b.programs[0].program.slots < 2) return false;
  for (runtime::ScheduleEntry& e : b.programs[0].program.schedule) e.slot = 0;
  b.programs[0].program.slots = 1;
  return true;
}

bool stale_stash(Bundle& b) {
  RankProgram& p = b.programs[0];
  const auto [segment, k] = first(p, [&](const ProgramSegment& s, size_t n) {
    const NodeId node = p.claims[s.steps[n].id].node;
    return s.steps[n].kind == StepKind::kCopy && node >= 0 && p.code.nodes[node].op->name == "stash";
  });
  if (segment == nullptr) return false;
  remove_step(b, segment->steps[k].id);
  return true;
}

bool same_samples(Bundle& b) {
  bool any = false;
  for (runtime::ProgramInput& in : b.programs[0].program.inputs) {
    for (auto& axes : in.placement.axes) {
      any = any || !axes.empty();
      axes.clear();
    }
  }
  return any;
}

bool update_of_first_part(Bundle& b) {
  bool any = false;
  for (runtime::ProgramState& s : b.programs[0].program.states) {
    for (auto& axes : s.placement.axes) {
      any = any || !axes.empty();
      axes.clear();
    }
  }
  return any;
}

bool other_first_values(Bundle& b) {
  for (runtime::ProgramState& s : b.programs[0].program.states) {
    if (s.kind != StateKind::kParameter) continue;
    s.initial = {runtime::InitialKind::kNormal, 0, 0.02};
    return true;
  }
  return false;
}

// A gradient is summed over the ranks that split the tensors, not over those that split the samples.
bool other_group(Bundle& b) {
  RankProgram& p = b.programs[0];
  const auto [segment, k] = first(p, [](const ProgramSegment& s, size_t n) {
    return s.kind == Segment::kReduce && s.steps[n].kind == StepKind::kCollectiveStart;
  });
  if (segment == nullptr) return false;
  const int64_t own = std::get<int64_t>(segment->steps[k].params.at("group"));
  for (size_t g = 0; g < p.program.groups.size(); ++g) {
    if (p.program.groups[g].axes == p.program.groups[static_cast<size_t>(own)].axes) continue;
    segment->steps[k].params["group"] = static_cast<int64_t>(g);
    return true;
  }
  return false;
}

}  // namespace partita::field
