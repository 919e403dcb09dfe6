// Activations that wait in the host's memory (RecomputeMode kOffload, kFullOffload): the time of their copies. A
// block's values go down beside the blocks that follow it, and come up while the backward part of the block behind it
// runs. Where gradients of weights are put off, what those read comes up once more for them.
#pragma once

#include "partitioner/planner/cluster/device_profile.h"
#include "partitioner/planner/cost/memory/memory_model.h"
#include "partitioner/planner/cost/step_times.h"

namespace partita {

// Of a micro-batch, seconds.
struct HostCopies {
  struct Copy {
    double all = 0;     // what it takes
    double waited = 0;  // of which what runs beside it does not hide so much
    double slowed = 0;  // what compute takes longer as it reads or writes device memory

    // Beside compute that takes so long.
    static Copy of(double bytes, const DeviceProfile& device, double beside);
    void add(const Copy& copy, double times);
    void add_to(PassTimes& pass, TimeKind kind, double PassTimes::*hidden) const;
  };
  Copy down, up, up_again;

  // Of a block that keeps so much and whose own parts take so long; `weight`: 0 where backward has it.
  static HostCopies of(const KeptBytes& kept, const DeviceProfile& device, double forward, double backward,
                       double weight);
  double added() const;
  void add(const HostCopies& copies, double times);
  void add_to(ChunkTimes& chunk) const;
};

}  // namespace partita
