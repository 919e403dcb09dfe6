#include "partitioner/planner/search/waiting_less.h"

namespace partita {

std::vector<Layout> waiting_less(CostModel& model, const Space& space, const Candidate& c, double fastest) {
  const Breakdown& b = c.prediction.breakdown;
  std::vector<Layout> out;
  if (!space.prefetch_blocks && c.prediction.step_seconds - b.gathers < fastest)
    out = model.prefetching_further(c.layout);
  if (!space.overlap_micro_batches && c.prediction.step_seconds - b.within_passes() < fastest) {
    if (auto in_turns = model.taking_turns(out.empty() ? c.layout : out.back())) out.push_back(*std::move(in_turns));
  }
  return out;
}

}  // namespace partita
