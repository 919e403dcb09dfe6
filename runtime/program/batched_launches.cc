#include "runtime/program/batched_launches.h"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <string>

#include "runtime/program/params.h"
#include "runtime/program/program_check.h"
#include "runtime/program/sides.h"

namespace partita::runtime {
namespace {

constexpr int64_t kMostBlocks = int64_t{1} << 30;  // of a launch

// Which launch has last written and read each byte of one slot's memory.
class LastUses {
 public:
  // The last launch that an access must come after, -1 for none.
  int before(const Operand& o, int64_t slot, bool writes) const {
    int last = -1;
    auto& spans = spans_[static_cast<size_t>(o.address.region)];
    const auto [begin, end] = range(o, slot);
    auto at = spans.upper_bound(begin);
    if (at != spans.begin()) --at;
    for (; at != spans.end() && at->first < end; ++at) {
      if (at->second.end <= begin) continue;
      last = std::max({last, at->second.written, writes ? at->second.read : -1});
    }
    return last;
  }
  void note(const Operand& o, int64_t slot, bool writes, int launch) {
    auto& spans = spans_[static_cast<size_t>(o.address.region)];
    const auto [begin, end] = range(o, slot);
    if (begin >= end) return;
    cut(spans, begin);
    cut(spans, end);
    int64_t known = begin;
    for (auto at = spans.lower_bound(begin); at != spans.end() && at->first < end; ++at) {
      if (at->first > known) at = spans.insert({known, {at->first, -1, -1}}).first;
      int& last = writes ? at->second.written : at->second.read;
      last = std::max(last, launch);
      known = at->second.end;
    }
    if (known < end) spans[known] = {end, writes ? launch : -1, writes ? -1 : launch};
  }

 private:
  struct Span {
    int64_t end;
    int written, read;
  };
  using Spans = std::map<int64_t, Span>;  // by their begins, apart from each other

  static std::pair<int64_t, int64_t> range(const Operand& o, int64_t slot) {
    const int64_t begin = o.address.in_slot(slot);
    return {begin, begin + std::max<int64_t>(operand_bytes(o), 0)};
  }
  static void cut(Spans& spans, int64_t at) {
    auto after = spans.upper_bound(at);
    if (after == spans.begin()) return;
    auto span = std::prev(after);
    if (span->first >= at || span->second.end <= at) return;
    const Span rest = span->second;
    span->second.end = at;
    spans.emplace(at, rest);
  }

  std::array<Spans, kRegions> spans_;
};

}  // namespace

std::vector<std::pair<size_t, size_t>> device_runs(const Program& program, const ProgramSegment& segment) {
  const auto is_part = [&](const Step& step) {
    if (step.kind == StepKind::kCopy) return !copies_host_memory(step);
    return (step.kind == StepKind::kKernel || step.kind == StepKind::kLibrary) && !runs_on_host(program, step);
  };
  std::vector<std::pair<size_t, size_t>> runs;
  const std::vector<Step>& steps = segment.steps;
  for (size_t k = 0; k < steps.size(); ++k) {
    const size_t begin = k;
    while (k < steps.size() && is_part(steps[k])) ++k;
    if (k > begin) runs.emplace_back(begin, k);
  }
  return runs;
}

std::vector<std::vector<size_t>> batched_launches(std::span<const Step> steps, std::span<const int> kinds,
                                                  int64_t slots) {
  std::vector<std::vector<size_t>> launches;
  std::vector<int64_t> blocks;      // of each launch
  std::map<int, int> last_of_kind;  // a launch
  std::vector<LastUses> uses(static_cast<size_t>(slots));
  const auto each_use = [&](const Step& step, auto f) {
    for (size_t slot = 0; slot < uses.size(); ++slot) {
      for (size_t k = 0; k < step.operands.size(); ++k) {
        const Operand& o = step.operands[k];
        if (o.dtype == DType::kInvalid) continue;
        const bool output = static_cast<int>(k) >= step.inputs;
        // What accumulates reads what it writes; to be written counts for both.
        f(uses[slot], o, static_cast<int64_t>(slot), output);
      }
    }
  };
  for (size_t k = 0; k < steps.size(); ++k) {
    const Step& step = steps[k];
    int after = -1, launch = -1;
    if (kinds[k] >= 0) {
      each_use(step, [&](const LastUses& u, const Operand& o, int64_t slot, bool writes) {
        after = std::max(after, u.before(o, slot, writes));
      });
      const auto last = last_of_kind.find(kinds[k]);
      if (last != last_of_kind.end() && last->second > after &&
          blocks[static_cast<size_t>(last->second)] + step.units <= kMostBlocks)
        launch = last->second;
    }
    if (launch < 0) {
      launch = static_cast<int>(launches.size());
      launches.emplace_back();
      blocks.push_back(0);
      if (kinds[k] >= 0) last_of_kind[kinds[k]] = launch;
    }
    launches[static_cast<size_t>(launch)].push_back(k);
    blocks[static_cast<size_t>(launch)] += step.units;
    each_use(step, [&](LastUses& u, const Operand& o, int64_t slot, bool writes) { u.note(o, slot, writes, launch); });
  }
  return launches;
}

std::vector<int> batched_kinds(std::span<const Step> steps) {
  std::map<std::string, int> numbers;
  std::vector<int> kinds;
  for (const Step& step : steps) {
    const bool batched = step.kind == StepKind::kKernel && step.params.count(kBatchedParam) > 0;
    kinds.push_back(batched ? numbers.try_emplace(step.name, static_cast<int>(numbers.size())).first->second : -1);
  }
  return kinds;
}

LaunchCount count_launches(const Program& program) {
  std::vector<LaunchCount> of_segment;
  for (const ProgramSegment& segment : program.segments) {
    LaunchCount count;
    for (const auto& [begin, end] : device_runs(program, segment)) {
      const std::span<const Step> steps(segment.steps.data() + begin, end - begin);
      for (const std::vector<size_t>& launch : batched_launches(steps, batched_kinds(steps), program.slots)) {
        if (steps[launch[0]].kind != StepKind::kKernel) continue;
        count.steps += static_cast<int64_t>(launch.size());
        ++count.launches;
      }
    }
    of_segment.push_back(count);
  }
  LaunchCount all;
  for (const ScheduleEntry& entry : program.schedule) {
    all.steps += of_segment[static_cast<size_t>(entry.segment)].steps;
    all.launches += of_segment[static_cast<size_t>(entry.segment)].launches;
  }
  return all;
}

std::vector<int64_t> launch_table(std::span<const Step* const> steps, std::span<std::byte* const> addresses) {
  std::vector<int64_t> table = {static_cast<int64_t>(steps.size()),
                                static_cast<int64_t>(std::bit_width(steps.size() - 1))};
  int64_t first = 0;
  size_t at = 0;
  for (const Step* step : steps) {
    table.push_back(first);
    table.push_back(int_param(step->params, kBatchedParam, 0));
    for (size_t k = 0; k < step->operands.size(); ++k)
      table.push_back(static_cast<int64_t>(reinterpret_cast<intptr_t>(addresses[at++])));
    first += step->units;
  }
  return table;
}

}  // namespace partita::runtime
