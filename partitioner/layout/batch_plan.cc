#include "partitioner/layout/batch_plan.h"

#include <algorithm>
#include <numeric>

#include "base/cat.h"
#include "base/quote.h"
#include "base/status.h"

namespace partita {

absl::StatusOr<int64_t> samples_of_run(const Graph& graph) {
  int64_t batch = -1;
  std::string first;
  for (const GraphInput& in : graph.inputs) {
    const Shape& shape = graph.type(in.value).shape;
    if (in.kind != InputKind::kData || shape.empty()) continue;
    if (batch >= 0 && shape[0] != batch) {
      return absl::InvalidArgumentError(
          cat("inputs ", quote(first), " and ", quote(in.name), " have ", batch, " and ", shape[0],
              " samples (dimension 0); expected the same number: what is not a "
              "sample's (a mask, a table) belongs into the model, as a constant, and what a "
              "sample has several of into a second dimension"));
    }
    batch = shape[0];
    first = in.name;
  }
  if (batch < 1) return absl::InvalidArgumentError("the model has no data input with a batch dimension");
  return batch;
}

int64_t global_batch(int64_t graph_batch, const Recipe& recipe, const Layout& layout) {
  if (recipe.batch.global || !recipe.batch.accumulation) return recipe.batch.global.value_or(graph_batch);
  const int64_t ranks = layout.sample_ranks();
  return std::max<int64_t>(graph_batch / ranks, 1) * *recipe.batch.accumulation * ranks;
}

int64_t micro_batch_of_runs(int64_t run, int64_t global, const Layout& layout) {
  const int64_t ranks = layout.sample_ranks(), sharing = ranks / std::gcd(global / run, ranks);
  return run % sharing == 0 ? run / sharing : 0;
}

bool shares_runs(int64_t ranks, int64_t experts, int64_t slices, int64_t runs, int64_t samples) {
  return runs % slices == 0 && ranks % slices == 0 && ranks / slices % experts == 0 && samples % (ranks / slices) == 0;
}

namespace {

bool has_running_statistics(const Graph& graph) {
  return std::any_of(graph.states.begin(), graph.states.end(),
                     [](const State& s) { return s.kind == StateKind::kRunning && s.next != kNoValue; });
}

}  // namespace

absl::StatusOr<BatchPlan> plan_batch(const Graph& forward, const Recipe& recipe, const Layout& layout) {
  const int64_t ranks = layout.sample_ranks(), experts = layout.expert;
  BatchPlan plan;
  PARTITA_ASSIGN_OR_RETURN(plan.graph_batch, samples_of_run(forward));
  const int64_t global = global_batch(plan.graph_batch, recipe, layout);
  const BatchRecipe& said = recipe.batch;
  if (said.global && said.micro && said.accumulation && *said.micro * *said.accumulation * ranks != global) {
    return absl::InvalidArgumentError(cat(
        "a global batch of ", global, " is not ", *said.micro, " samples a micro-batch x ", *said.accumulation,
        " micro-batches (accumulation) x ", ranks, " data-parallel ranks = ", *said.micro * *said.accumulation * ranks,
        "; leave one of the three out, or change it"));
  }
  if (global % plan.graph_batch != 0) {
    return absl::InvalidArgumentError(
        cat("batch.global is ", global, " and the graph takes ", plan.graph_batch,
            " samples at a time: expected a multiple of ", plan.graph_batch,
            "; change batch.global, or export the model with a symbolic batch dimension and bind it"));
  }
  plan.micro_batches = global / plan.graph_batch;
  // PipeDream's micro-batches are optimizer steps, one after the other.
  const bool steps = layout.schedule == PipelineSchedule::kPipedream;
  bool ordered = steps || (has_running_statistics(forward) && recipe.semantics.batch_norm == BatchNormGroup::kGlobal);
  for (int64_t slices = std::min(ranks, plan.micro_batches); slices >= 1; --slices) {
    auto shares = [&](const auto& axes) {
      return shares_runs(axes.sample_ranks(), axes.expert, slices, plan.micro_batches, plan.graph_batch);
    };
    if (!shares(layout) || (ordered && slices > 1)) continue;
    // Stages that differ have the same runs side by side.
    if (!std::all_of(layout.stages.begin(), layout.stages.end(), shares)) continue;
    plan.slice_ranks = slices;
    plan.batch_ranks = ranks / slices;
    const int64_t own = plan.graph_batch / plan.batch_ranks, micro = layout.micro_batch > 0 ? layout.micro_batch : own;
    if (own % micro != 0) {
      return absl::InvalidArgumentError(cat("pin micro_batch: ", micro, ": a data-parallel rank has ", own,
                                            " samples of each run of the graph, which takes ", plan.graph_batch,
                                            "; expected a divisor of ", own));
    }
    plan.parts = own / micro;
    if (recipe.reproducible) {
      plan.fixed_parts = recipe.reproducible->samples;
      plan.tensor_blocks = recipe.reproducible->tensor;
    }
    if (steps && plan.parts > 1) {
      return absl::InvalidArgumentError(
          cat("pin schedule: pipedream: a micro-batch is an optimizer step and so a whole run of the graph, ", own,
              " samples a rank; expected micro_batch ", own, " or none, found ", micro,
              "; export the model with a symbolic batch dimension, or bind it to ", micro * plan.batch_ranks));
    }
    for (const Layout::StageAxes& stage : layout.stages) {
      const int64_t shared = stage.sample_ranks() / slices;
      if (plan.graph_batch / plan.parts % shared != 0) {
        return absl::InvalidArgumentError(cat("pin stages: a micro-batch has ", plan.graph_batch / plan.parts,
                                              " samples of a run, and a stage has ", shared,
                                              " ranks that share them; expected a multiple of that: pin micro_batch "
                                              "or the batch accordingly"));
      }
    }
    return plan;
  }
  return absl::InvalidArgumentError(
      cat("cannot divide a global batch of ", global, " (", plan.micro_batches, " runs of a graph with ",
          plan.graph_batch, " samples) over ", ranks, " data-parallel ranks",
          experts > 1 ? cat(", of which ", experts, " (the expert axis) share a run") : "",
          "; use a number of ranks that divides it"));
}

}  // namespace partita
