#include "partitioner/parallel_plan.h"

#include <algorithm>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"

namespace partita {
namespace {

// Samples along dimension 0 of the data inputs, which all agree on it.
absl::StatusOr<int64_t> batch_of(const Graph& graph) {
  int64_t batch = -1;
  std::string first;
  for (const GraphInput& in : graph.inputs) {
    const Shape& shape = graph.type(in.value).shape;
    if (in.kind != InputKind::kData || shape.empty()) continue;
    if (batch >= 0 && shape[0] != batch) {
      return absl::InvalidArgumentError(cat("inputs ", quote(first), " and ", quote(in.name), " have ", batch, " and ",
                                            shape[0], " samples (dimension 0); expected the same number"));
    }
    batch = shape[0];
    first = in.name;
  }
  if (batch < 1) return absl::InvalidArgumentError("the model has no data input with a batch dimension");
  return batch;
}

bool has_running_statistics(const Graph& graph) {
  return std::any_of(graph.states.begin(), graph.states.end(),
                     [](const State& s) { return s.kind == StateKind::kRunning && s.next != kNoValue; });
}

// Dimension 0 split evenly by `axes`, where it divides.
std::optional<Sharding> split_first(const Shape& shape, const std::vector<int>& axes, const Mesh& mesh) {
  int64_t n = 1;
  for (int a : axes) n *= mesh.axes[a].size;
  if (shape.empty() || shape[0] % n != 0 || shape[0] == 0) return std::nullopt;
  Sharding s = Sharding::replicated(shape);
  s.dims[0][0].axes = axes;
  return s;
}

}  // namespace

absl::StatusOr<BatchPlan> plan_batch(const Graph& forward, const Recipe& recipe, int64_t ranks) {
  BatchPlan plan;
  PARTITA_ASSIGN_OR_RETURN(plan.graph_batch, batch_of(forward));
  int64_t global = recipe.batch.global.value_or(plan.graph_batch);
  if (global % plan.graph_batch != 0) {
    return absl::InvalidArgumentError(
        cat("batch.global is ", global, " and the graph takes ", plan.graph_batch,
            " samples at a time: expected a multiple of ", plan.graph_batch,
            "; change batch.global, or export the model with a symbolic batch dimension and bind it"));
  }
  plan.micro_batches = global / plan.graph_batch;
  bool ordered = has_running_statistics(forward);
  for (int64_t slices = std::min(ranks, plan.micro_batches); slices >= 1; --slices) {
    if (plan.micro_batches % slices != 0 || ranks % slices != 0 || plan.graph_batch % (ranks / slices) != 0 ||
        (ordered && slices > 1))
      continue;
    plan.slice_ranks = slices;
    plan.batch_ranks = ranks / slices;
    return plan;
  }
  return absl::InvalidArgumentError(cat("cannot divide a global batch of ", global, " (", plan.micro_batches,
                                        " runs of a graph with ", plan.graph_batch, " samples) over ", ranks,
                                        " data-parallel ranks; use a number of ranks that divides it"));
}

absl::StatusOr<ShardingPlan> plan_shardings(const Graph& graph, const Recipe& recipe, const BatchPlan& batch) {
  ShardingPlan plan;
  std::vector<int> data_axes;
  if (batch.slice_ranks > 1) {
    plan.slice_axes = {0};
    plan.mesh.axes.push_back({batch.batch_ranks > 1 ? "data_outer" : "data", batch.slice_ranks});
  }
  std::vector<int> batch_axes;
  if (batch.batch_ranks > 1) {
    batch_axes = {static_cast<int>(plan.mesh.axes.size())};
    plan.mesh.axes.push_back({batch.slice_ranks > 1 ? "data_inner" : "data", batch.batch_ranks});
  }
  for (int a = 0; a < static_cast<int>(plan.mesh.axes.size()); ++a) data_axes.push_back(a);
  plan.micro_batches = batch.micro_batches / batch.slice_ranks;
  plan.samples_per_step = batch.graph_batch * batch.micro_batches;
  for (const GraphInput& in : graph.inputs) {
    Sharding s = Sharding::replicated(graph.type(in.value).shape);
    if (in.kind == InputKind::kData && !s.dims.empty()) s.dims[0][0].axes = batch_axes;
    plan.inputs.push_back(std::move(s));
  }
  int zero = recipe.pin.zero.value_or(0);
  for (const State& s : graph.states) {
    const Shape& shape = graph.type(s.value).shape;
    if (s.kind == StateKind::kAccumulator) {
      plan.states.push_back(std::nullopt);
      continue;
    }
    bool split = (s.kind == StateKind::kOptimizer && zero >= 1) || (s.kind == StateKind::kParameter && zero >= 3);
    std::optional<Sharding> stored =
        split && !data_axes.empty() ? split_first(shape, data_axes, plan.mesh) : std::nullopt;
    Sharding whole = Sharding::replicated(shape);
    plan.states.push_back(StateLayout{stored.value_or(whole), whole, zero >= 3});
  }
  return plan;
}

absl::StatusOr<int64_t> pinned_ranks(const Recipe& recipe, std::optional<int64_t> ranks) {
  int64_t product = 1;
  bool said = false;
  for (const auto& [name, size] : recipe.pin.axes) {
    if (name != "data" && size > 1) {
      return absl::UnimplementedError(
          cat("pin ", name, ": ", size,
              ": this version splits work over the data axis alone; leave the pin out or set it to 1"));
    }
    said = said || name == "data";
    product *= size;
  }
  if (!recipe.pin.values.empty())
    return absl::UnimplementedError(
        "pins of single values: this version splits work over the data axis alone; leave them out");
  if (said && ranks && *ranks != product)
    return absl::InvalidArgumentError(
        cat("the pins ask for ", product, " ranks and --ranks says ", *ranks, "; expected the same number"));
  return said ? product : ranks.value_or(1);
}

}  // namespace partita
