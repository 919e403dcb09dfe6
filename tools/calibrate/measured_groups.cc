#include "tools/calibrate/measured_groups.h"

#include <algorithm>

#include "base/cat.h"
#include "base/status.h"

namespace partita {

absl::StatusOr<std::vector<MeasuredGroup>> read_measured_groups(const std::string& path, const Problem& problem,
                                                                const Layout& ran) {
  const Cluster& cluster = *problem.cluster;
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
  const MeasuredRun& run = out[0].measured.run;
  auto differs = [&](std::string_view what, int64_t expected, int64_t found) {
    return absl::InvalidArgumentError(cat(path, ": the trace of a run of ", found, " ", what, ", where the plan has ",
                                          expected, "; expected the trace of the plan's own run"));
  };
  if (run.ranks > 0 && run.ranks != ran.ranks()) return differs("ranks", ran.ranks(), run.ranks);
  if (run.samples_per_step > 0 && run.samples_per_step != problem.global_batch)
    return differs("samples a step", problem.global_batch, run.samples_per_step);
  return out;
}

std::string describe(const MeasuredGroup& group, const Cluster& cluster) {
  const int64_t last = group.first_rank + static_cast<int64_t>(group.measured.ranks) - 1;
  return cat(cluster.groups[group.group].device.name, ": ranks ", group.first_rank, " to ", last, ", stage ",
             group.stage);
}

}  // namespace partita
