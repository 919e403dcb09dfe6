#include "partitioner/shard/plan_shardings.h"

#include "base/cat.h"
#include "base/status.h"
#include "partitioner/shard/place_tensors.h"
#include "partitioner/shard/splittable.h"
#include "partitioner/shard/value_pins.h"

namespace partita {

absl::Status check_sharding_pins(const Graph& graph, const Recipe& recipe) {
  if (recipe.compress > Compression::kBf16 && recipe.precision == Precision::kFp16)
    return absl::InvalidArgumentError(
        cat("compress: ", enum_name(recipe.compress),
            ": error feedback carries gradients from step to step, and the loss scale of precision: fp16 changes "
            "between them; use precision: bf16, or compress: bf16"));
  if (recipe.compress > Compression::kBf16 && recipe.run.skips())
    return absl::InvalidArgumentError(
        cat("compress: ", enum_name(recipe.compress),
            ": error feedback carries gradients from step to step, those of a step that run.on_nonfinite: skip leaves "
            "out as well; use compress: bf16, or on_nonfinite: rollback"));
  return check_value_pins(graph, recipe.pin);
}

absl::StatusOr<PlannedGraph> plan_shardings(const Graph& graph, const Recipe& recipe, const Layout& layout,
                                            const BatchPlan& batch, std::vector<std::string>& warnings) {
  PARTITA_RETURN_IF_ERROR(check_sharding_pins(graph, recipe));
  const StageScope scope;
  PARTITA_ASSIGN_OR_RETURN(SplittableGraph splittable, make_splittable(graph, layout, batch, scope));
  return place_tensors(std::move(splittable), recipe, layout, batch, scope, warnings);
}

absl::StatusOr<PlannedGraph> plan_shardings_like(const PlannedGraph& training, const Graph& graph, const Recipe& recipe,
                                                 const Layout& layout, const BatchPlan& batch) {
  const StageScope scope;
  PARTITA_ASSIGN_OR_RETURN(SplittableGraph splittable,
                           make_splittable_like(training.plan.mesh, graph, layout, batch, scope));
  return place_tensors_like(training, std::move(splittable), recipe, layout, batch, scope);
}

}  // namespace partita
