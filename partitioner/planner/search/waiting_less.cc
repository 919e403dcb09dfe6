#include "partitioner/planner/search/waiting_less.h"

#include "partitioner/planner/search/layout_order.h"

namespace partita {
namespace {

constexpr size_t kMostUnits = 256;

}  // namespace

bool take_turns(const Problem& problem, const Space& space, Layout& l) {
  const bool waits = any_stage(l, [](const Layout& s) { return s.tensor * s.context * s.expert > 1; });
  if (!problem.own_programs || problem.workload->units.size() > kMostUnits || space.overlap_micro_batches ||
      l.pipeline == 1 || !waits)
    return false;
  l.overlap_micro_batches = kInTurns;
  return true;
}

std::vector<Layout> waiting_less(CostModel& model, const Space& space, const Candidate& c, double fastest) {
  const Breakdown& b = c.prediction.breakdown;
  std::vector<Layout> out;
  if (!space.prefetch_blocks && c.prediction.step_seconds - b.gathers < fastest)
    out = model.prefetching_further(c.layout);
  const Layout ahead = out.empty() ? c.layout : out.back();
  if (!space.overlap_products && c.prediction.step_seconds - b.tensor < fastest) {
    if (auto parted = model.with_products_in_parts(ahead)) out.push_back(*std::move(parted));
  }
  if (!space.overlap_micro_batches && c.prediction.step_seconds - b.within_passes() < fastest) {
    if (auto in_turns = model.taking_turns(ahead)) out.push_back(*std::move(in_turns));
  }
  return out;
}

}  // namespace partita
