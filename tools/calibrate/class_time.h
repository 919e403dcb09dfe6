// The cost model's time of a training step by classes of work, beside which a measured run's can be held.
#pragma once

#include "partitioner/planner/cost/cost_model.h"
#include "tools/calibrate/measured_run.h"

namespace partita {

// Seconds that a rank of the stage spends in a training step on kernels of the class, were its device `device`.
// kCommunication: of the stage that binds, from the whole step's prediction, with what is waited for other stages.
double class_seconds(WorkClass c, const Problem& problem, const DeviceProfile& device, const Layout& layout,
                     int64_t stage = 0);

// The value of software.memory_traffic at which kMemory takes `seconds`, within [0.01, 100].
double memory_traffic_for(double seconds, const Problem& problem, const DeviceProfile& device, const Layout& layout,
                          int64_t stage = 0);

}  // namespace partita
