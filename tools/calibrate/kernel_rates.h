// Rates of the runtime's library kernels, as parts of a device profile.
#pragma once

#include "partitioner/planner/cluster/device_profile.h"
#include "tools/calibrate/rank_team.h"

namespace partita {

// Sets flops, matrix, matrix_rows, matrix_columns, convolution, attention_* and launch_seconds of `device`. Returns the
// mean noise of its timings.
absl::StatusOr<double> measure_host_kernels(const RankTeam& team, DeviceProfile& device);

}  // namespace partita
