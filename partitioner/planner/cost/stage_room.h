// A stage's memory beside its device's, and what it computes again so that it fits.
#pragma once

#include <optional>
#include <vector>

#include "partitioner/planner/cost/cost_model.h"
#include "partitioner/planner/cost/recompute_knapsack.h"

namespace partita {

class CostModel::StageRoom {
 public:
  // `chunks`: of `whole`. `own`: the layout that all stages would have if they were like this one; it must outlive
  // this.
  StageRoom(CostModel& model, const Layout& whole, const std::vector<StageUnits>& chunks, const Layout& own,
            int64_t stage);

  // Bytes that units need beyond what the device has; negative: that are left.
  double missing(const StageUnits& units) const;
  // Chooses what `units` compute again so that `spare` bytes are left, at least cost in time: sets units.recomputed.
  // Seconds that it adds to a micro-batch; nullopt where the stage never fits.
  std::optional<double> compute_again(StageUnits& units, double spare) const;

 private:
  // As compute_again, with modes up to `last`, of those that wait on the host with or without kOffload.
  std::optional<double> choose(StageUnits& units, double spare, RecomputeMode last, bool offload) const;

  const Problem& problem_;
  const Layout& own_;
  const DeviceProfile& device_;
  const double held_;                                         // micro-batches in flight
  bool hosted_ = false;                                       // whether there are modes that wait on the host
  std::vector<RecomputeItems> each_;                          // of each kind's blocks; counts are the units'
  std::vector<double> seconds_;                               // of a unit of each kind
  std::vector<std::array<double, kRecomputeModes>> waiting_;  // bytes that a kind's block leaves to the host
};

}  // namespace partita
