// A stage's memory beside its device's, and what it computes again so that it fits.
#pragma once

#include <optional>
#include <vector>

#include "partitioner/planner/cost/cost_model.h"
#include "partitioner/planner/cost/recompute_knapsack.h"

namespace partita {

class CostModel::StageRoom {
 public:
  // `own`: the layout that all stages would have if they were like this one; it must outlive this.
  StageRoom(CostModel& model, const Layout& whole, const Layout& own, int64_t stage);

  // Bytes that units need beyond what the device has; negative: that are left.
  double missing(const StageUnits& units) const;
  // Chooses what `units` compute again so that `spare` bytes are left, at least cost in time: sets units.recomputed.
  // Seconds that it adds to a micro-batch; nullopt where the stage never fits.
  std::optional<double> compute_again(StageUnits& units, double spare) const;

 private:
  const Problem& problem_;
  const Layout& own_;
  const DeviceProfile& device_;
  const double held_;                 // micro-batches in flight
  std::vector<RecomputeItems> each_;  // of each kind's blocks; counts are the units'
};

}  // namespace partita
