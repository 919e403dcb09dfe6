#include "tools/calibrate/measured_groups.h"

#include <algorithm>

#include "base/cat.h"
#include "base/status.h"

namespace partita {

absl::StatusOr<std::vector<MeasuredGroup>> read_measured_groups(const std::string& path, const Cluster& cluster,
                                                                const Layout& ran) {
  std::vector<MeasuredGroup> out;
  int64_t first = 0;
  for (size_t g = 0; g < cluster.groups.size(); ++g) {
    const int64_t end = first + cluster.groups[g].devices();
    MeasuredGroup& group = out.emplace_back(MeasuredGroup{.group = g, .first_rank = first});
    while (group.stage + 1 < ran.pipeline && ran.first_rank(group.stage + 1) <= first) ++group.stage;
    const int64_t stage_end = ran.first_rank(group.stage) + ran.ranks_of_stage(group.stage);
    PARTITA_ASSIGN_OR_RETURN(group.measured, read_measured_ranks(path, first, std::min(end, stage_end)));
    first = end;
  }
  return out;
}

std::string describe(const MeasuredGroup& group, const Cluster& cluster) {
  const int64_t last = group.first_rank + static_cast<int64_t>(group.measured.ranks) - 1;
  return cat(cluster.groups[group.group].device.name, ": ranks ", group.first_rank, " to ", last, ", stage ",
             group.stage);
}

}  // namespace partita
