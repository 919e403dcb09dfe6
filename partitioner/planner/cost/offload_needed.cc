// How much of the optimizer's states is to lie on the host. Its update there takes time in proportion, while stages
// wait for the slowest, so that all stages leave as large a part to it as the one that lacks most.
#include <algorithm>
#include <cmath>
#include <limits>

#include "partitioner/planner/cost/cost_model.h"

namespace partita {
namespace {

constexpr double kSteps = 64;  // fractions are multiples of 1 / kSteps, so that they are written as they are

}  // namespace

// Memory falls in proportion, but for what an update needs where that is the peak.
double CostModel::offload_needed(const Layout& l) {
  const std::vector<StageUnits> chunks = chunk_units(l);
  Layout none = l, all = l;
  none.offload_fraction = 0, all.offload_fraction = 1;
  double needed = 0;
  for (int64_t stage = 0; stage < l.pipeline; ++stage) {
    const double without = missing(none, chunks, stage);
    if (without <= 0) continue;
    const double with = missing(all, chunks, stage);
    if (with > 0) return std::numeric_limits<double>::infinity();
    needed = std::max(needed, without / (without - with));
  }
  return std::ceil(needed * kSteps) / kSteps;
}

}  // namespace partita
