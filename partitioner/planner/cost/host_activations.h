// Activations that wait in the host's memory (RecomputeMode kOffload, kFullOffload): the time of their copies. A
// block's values go down beside the blocks that follow it, and come up while the backward part of the block behind it
// runs.
#pragma once

#include "partitioner/planner/cluster/device_profile.h"
#include "partitioner/planner/cost/step_times.h"

namespace partita {

// Of a micro-batch, seconds.
struct HostCopies {
  double each_way = 0;                    // what they take
  double waited_down = 0, waited_up = 0;  // of which the block's own forward and backward part hide not so much
  double slowed = 0;                      // each way: what compute takes longer as they read and write device memory

  // `bytes` of a block whose parts take so long.
  static HostCopies of(double bytes, const DeviceProfile& device, double forward, double backward);
  double added() const { return waited_down + waited_up + 2 * slowed; }
  void add(const HostCopies& copies, double times);
  void add_to(PassTimes& forward, PassTimes& backward) const;
};

}  // namespace partita
