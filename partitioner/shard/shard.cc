#include "partitioner/shard/shard.h"

#include "base/status.h"

namespace partita {

absl::StatusOr<PlannedStages> shard(const Graph& graph, const Recipe& recipe, const Layout& layout,
                                    const BatchPlan& batch, std::vector<std::string>& warnings) {
  if (!layout.stages.empty()) return plan_stages(graph, recipe, layout, batch, warnings);
  PlannedStages planned;
  PARTITA_ASSIGN_OR_RETURN(planned.joined, plan_shardings(graph, recipe, layout, batch, warnings));
  return planned;
}

absl::StatusOr<PlannedStages> shard_like(const PlannedStages& training, const Graph& graph, const Recipe& recipe,
                                         const Layout& layout, const BatchPlan& batch, const StateOwners& owners) {
  if (!layout.stages.empty()) return plan_stages_like(training, graph, recipe, layout, batch, owners);
  PlannedStages planned;
  PARTITA_ASSIGN_OR_RETURN(planned.joined, plan_shardings_like(training.joined, graph, recipe, layout, batch));
  return planned;
}

}  // namespace partita
