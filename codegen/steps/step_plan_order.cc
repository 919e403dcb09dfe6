// Kernels that can be launched together (runtime/program/batched_launches.h) must not share memory that others need
// meanwhile, and what is computed once an update for each parameter, such as the sum of a gradient's squares, would:
// its partial sums die at once, and the next one's take their place. Standing together in the program they have memory
// of their own.
//
//   part(a) sum(a) part(b) sum(b) norm  ->  part(a) part(b) sum(a) sum(b) norm
#include <string>

#include "codegen/steps/step_planner.h"
#include "ir/nest/nest_text.h"
#include "runtime/program/batched_launches.h"

namespace partita {
namespace {

constexpr int64_t kSmall = 64 << 10;  // bytes of results that may live longer so

}  // namespace

void StepPlanner::bring_together() {
  const auto is_part = [&](const Draft& d) {
    return d.step.kind == runtime::StepKind::kKernel && d.step.segment == Segment::kUpdate &&
           graph_.nodes[d.step.node].device == DeviceKind::kDefault;
  };
  for (size_t begin = 0; begin < drafts_.size(); ++begin) {
    size_t end = begin;
    while (end < drafts_.size() && is_part(drafts_[end])) ++end;
    if (end - begin > 1) bring_together(begin, end);
    begin = end;
  }
}

// Each value as if it had memory of its own, to see what must come after what.
void StepPlanner::bring_together(size_t begin, size_t end) {
  std::vector<runtime::Step> steps;
  std::vector<int> kinds;
  std::map<std::string, int> numbers;
  for (size_t k = begin; k < end; ++k) {
    const Draft& d = drafts_[k];
    runtime::Step& step = steps.emplace_back();
    step.inputs = d.step.inputs;
    int64_t written = 0;
    for (size_t u = 0; u < d.uses.size(); ++u) {
      const Use& use = d.uses[u];
      const bool value = use.id >= 0;
      const int64_t place = value ? use.id : -1 - use.id;
      step.operands.push_back({{value ? runtime::Region::kState : runtime::Region::kArena, 64 * place, 0},
                               use.absent ? DType::kInvalid : DType::kU8,
                               {1}});
      if (!use.absent && static_cast<int>(u) >= d.step.inputs) written += byte_size(use.type);
    }
    kinds.push_back(written > kSmall
                        ? -1
                        : numbers.try_emplace(to_string(*d.step.nest), static_cast<int>(numbers.size())).first->second);
  }
  std::vector<Draft> ordered;
  for (const std::vector<size_t>& launch : runtime::batched_launches(steps, kinds, 1)) {
    for (size_t k : launch) ordered.push_back(std::move(drafts_[begin + k]));
  }
  std::move(ordered.begin(), ordered.end(), drafts_.begin() + static_cast<int64_t>(begin));
}

}  // namespace partita
