#include "partitioner/planner/search/cut_names.h"

#include "partitioner/planner/workload/pinned_cuts.h"

namespace partita {

Layout CutNames::named(Layout l) {
  if (l.pipeline == 1 || !l.cut_names.empty()) return l;
  const std::vector<int> units = l.cuts.empty() ? model_.even_cuts(l) : l.cuts;
  auto [at, fresh] = names_.try_emplace(units);
  if (fresh) at->second = names_of_cuts(*model_.problem().workload, units);
  l.cut_names = at->second;
  return l;
}

}  // namespace partita
