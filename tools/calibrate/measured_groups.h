// A measured run by groups of devices: in each group some ranks do the same work.
#pragma once

#include <string>
#include <vector>

#include "partitioner/layout/layout.h"
#include "partitioner/planner/space/problem.h"
#include "tools/calibrate/measured_run.h"

namespace partita {

// The ranks of one group that hold its first stage.
struct MeasuredGroup {
  size_t group = 0;        // of the cluster
  int64_t stage = 0;       // of the layout that ran
  int64_t first_rank = 0;  // of those ranks
  MeasuredRanks measured;

  int64_t slowest_rank() const { return first_rank + static_cast<int64_t>(measured.slowest); }
};

// One for each group of the problem's cluster, from rank 0's trace and those beside it. NotFound where a group's first
// rank has left none, InvalidArgument where the trace is of other ranks than the layout's or of other samples a step
// than the problem's.
absl::StatusOr<std::vector<MeasuredGroup>> read_measured_groups(const std::string& path, const Problem& problem,
                                                                const Layout& ran);

// "fast: ranks 0 to 1, stage 0"
std::string describe(const MeasuredGroup& group, const Cluster& cluster);

}  // namespace partita
