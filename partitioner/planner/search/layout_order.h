// Which of two layouts goes first, and which are of one family.
#pragma once

#include <map>
#include <tuple>
#include <vector>

#include "partitioner/planner/search/candidate.h"
#include "partitioner/planner/search/refused_programs.h"

namespace partita {

using Family = std::tuple<int64_t, int64_t, int64_t, int64_t, int, std::vector<Layout::StageAxes>>;
inline Family family(const Layout& l) { return {l.tensor, l.pipeline, l.context, l.expert, l.zero, l.stages}; }

// A total order, so that equal times give the same plan everywhere: simpler layouts first.
inline auto order(double seconds, const Layout& l) {
  return std::make_tuple(seconds, l.pipeline, l.tensor, l.context, l.expert, l.zero, l.zero_group,
                         static_cast<int>(l.offload), l.offload_fraction, static_cast<int>(l.recompute),
                         static_cast<int>(l.schedule), l.interleave, -l.micro_batch, l.sequence_parallel, l.cuts.size(),
                         l.stages, l.cuts, l.recompute_blocks, l.prefetched(), l.overlapped());
}

inline bool before(const PricedLayout& a, const PricedLayout& b) {
  return order(a.seconds, a.layout) < order(b.seconds, b.layout);
}

inline std::map<Family, const PricedLayout*> best_of_families(const std::vector<PricedLayout>& all) {
  std::map<Family, const PricedLayout*> best;
  for (const PricedLayout& p : all) {
    const PricedLayout*& at = best[family(p.layout)];
    if (at == nullptr || before(p, *at)) at = &p;
  }
  return best;
}

inline auto order(const Candidate& c) { return order(c.prediction.step_seconds, c.layout); }

// Whether it holds for a stage, as the layout that all would have if they were like it.
inline bool any_stage(const Layout& l, bool (*holds)(const Layout&)) {
  if (l.stages.empty()) return holds(l);
  for (int64_t s = 0; s < l.pipeline; ++s) {
    if (holds(l.of_stage(s))) return true;
  }
  return false;
}

}  // namespace partita
