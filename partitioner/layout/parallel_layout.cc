#include "partitioner/layout/parallel_layout.h"

#include <algorithm>
#include <map>
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
      return absl::InvalidArgumentError(cat("inputs ", quote(first), " and ", quote(in.name), " have ", batch, " and ",
                                            shape[0], " samples (dimension 0); expected the same number"));
    }
    batch = shape[0];
    first = in.name;
  }
  if (batch < 1) return absl::InvalidArgumentError("the model has no data input with a batch dimension");
  return batch;
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

absl::StatusOr<BatchPlan> plan_batch(const Graph& forward, const Recipe& recipe, const ParallelLayout& layout) {
  const int64_t ranks = layout.sample_ranks(), experts = layout.expert;
  BatchPlan plan;
  PARTITA_ASSIGN_OR_RETURN(plan.graph_batch, samples_of_run(forward));
  int64_t global = recipe.batch.global.value_or(plan.graph_batch);
  if (!recipe.batch.global && recipe.batch.accumulation) {
    int64_t micro = std::max<int64_t>(plan.graph_batch / ranks, 1);
    global = micro * *recipe.batch.accumulation * ranks;
  }
  if (global % plan.graph_batch != 0) {
    return absl::InvalidArgumentError(
        cat("batch.global is ", global, " and the graph takes ", plan.graph_batch,
            " samples at a time: expected a multiple of ", plan.graph_batch,
            "; change batch.global, or export the model with a symbolic batch dimension and bind it"));
  }
  plan.micro_batches = global / plan.graph_batch;
  // PipeDream's micro-batches are optimizer steps, one after the other.
  const bool steps = recipe.pin.schedule == PipelineSchedule::kPipedream;
  bool ordered = steps || (has_running_statistics(forward) && recipe.semantics.batch_norm == BatchNormGroup::kGlobal);
  for (int64_t slices = std::min(ranks, plan.micro_batches); slices >= 1; --slices) {
    auto shares = [&](const ParallelLayout& l) {
      return shares_runs(l.sample_ranks(), l.expert, slices, plan.micro_batches, plan.graph_batch);
    };
    if (!shares(layout) || (ordered && slices > 1)) continue;
    // Stages that differ have the same runs side by side.
    if (!std::all_of(layout.stages.begin(), layout.stages.end(), shares)) continue;
    plan.slice_ranks = slices;
    plan.batch_ranks = ranks / slices;
    std::optional<int64_t> micro = recipe.pin.micro_batch ? recipe.pin.micro_batch : recipe.batch.micro;
    int64_t own = plan.graph_batch / plan.batch_ranks;
    if (micro && own % *micro != 0) {
      return absl::InvalidArgumentError(cat("pin micro_batch: ", *micro, ": a data-parallel rank has ", own,
                                            " samples of each run of the graph; expected a divisor of ", own));
    }
    plan.parts = micro ? own / *micro : 1;
    if (steps && plan.parts > 1) {
      return absl::InvalidArgumentError(
          cat("pin schedule: pipedream: a micro-batch is an optimizer step and so a whole run of the graph, ", own,
              " samples a rank; expected micro_batch ", own, " or none, found ", *micro,
              "; export the model with a symbolic batch dimension, or bind it to ", *micro * plan.batch_ranks));
    }
    for (const ParallelLayout& stage : layout.stages) {
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

namespace {

constexpr int64_t kDevicesOfANode = 8;  // where no cluster says otherwise
constexpr int64_t kChunks = 2;          // of an interleaved stage

// What an asynchronous pipeline's stages, each at its own micro-batch, cannot do together.
absl::Status refuse_with_pipedream(const Recipe& recipe) {
  auto refuse = [](std::string_view what, std::string_view instead) {
    return absl::InvalidArgumentError(
        cat("pin schedule: pipedream updates each stage after each micro-batch, which goes without ", what, "; ",
            instead, ", or use schedule: 1f1b"));
  };
  if (recipe.clip_grad_norm)
    return refuse("clip_grad_norm: the norm over all stages is not known then", "clip_grad_value clips by element");
  if (recipe.precision == Precision::kFp16)
    return refuse("precision: fp16: whether a step overflows is not known on all stages then", "use precision: bf16");
  if (recipe.compress != Compression::kNone) return refuse("compress", "leave it out");
  if (recipe.pin.offload.value_or(OffloadMode::kNone) != OffloadMode::kNone)
    return refuse("offload: weights are stashed on the device", "leave it out");
  return absl::OkStatus();
}

}  // namespace

namespace {

// The layout that all stages would have if they were like one.
absl::StatusOr<ParallelLayout> equal_stages(const Recipe& recipe, std::optional<int64_t> ranks,
                                            std::vector<std::string>& warnings) {
  const PinRecipe& pin = recipe.pin;
  ParallelLayout l;
  l.tensor = pin.axis("tensor").value_or(1);
  l.context = pin.axis("context").value_or(1);
  l.expert = pin.axis("expert").value_or(1);
  l.schedule = pin.schedule.value_or(PipelineSchedule::k1f1b);
  l.pipeline = pin.axis("pipeline").value_or(1);
  int64_t inner = l.tensor * l.context * l.expert;
  if (ranks && pin.schedule && !pin.axis("pipeline"))
    l.pipeline = std::max<int64_t>(1, *ranks / (inner * pin.axis("data").value_or(1)));
  inner *= l.pipeline;
  if (pin.axis("data")) {
    l.data = *pin.axis("data");
    if (ranks && *ranks != l.data * inner) {
      return absl::InvalidArgumentError(cat("the pins ask for ", l.data * inner, " ranks (data ", l.data,
                                            " x pipeline ", l.pipeline, " x expert ", l.expert, " x context ",
                                            l.context, " x tensor ", l.tensor, ") and --ranks says ", *ranks,
                                            "; expected the same number"));
    }
  } else if (ranks) {
    if (*ranks % inner != 0) {
      return absl::InvalidArgumentError(cat("the pins need a multiple of ", inner, " ranks (pipeline ", l.pipeline,
                                            " x expert ", l.expert, " x context ", l.context, " x tensor ", l.tensor,
                                            "), and --ranks says ", *ranks));
    }
    l.data = *ranks / inner;
  }
  l.zero = pin.zero.value_or(0);
  l.reshard_after_forward = pin.reshard_after_forward.value_or(true);
  if (l.schedule == PipelineSchedule::kInterleaved) l.chunks = pin.interleave.value_or(kChunks);
  if (l.schedule != PipelineSchedule::kInterleaved && pin.interleave.value_or(1) > 1)
    return absl::InvalidArgumentError(
        cat("pin interleave: ", *pin.interleave, " chunks per stage need schedule: interleaved"));
  if (l.schedule == PipelineSchedule::kPipedream) {
    PARTITA_RETURN_IF_ERROR(refuse_with_pipedream(recipe));
    if (l.pipeline == 1)
      return absl::InvalidArgumentError(
          "pin schedule: pipedream: expected a pipeline of at least 2 stages, found 1; on one stage it is plain "
          "training with a batch of one micro-batch");
  }
  l.cuts = pin.cuts;
  if (const int64_t parts = l.pipeline * l.chunks; !l.cuts.empty() && static_cast<int64_t>(l.cuts.size()) != parts - 1)
    return absl::InvalidArgumentError(cat("pin cuts: ", l.cuts.size(), " cuts make ", l.cuts.size() + 1,
                                          " parts, and there are ", l.pipeline, " stages of ", l.chunks,
                                          " chunks; expected ", parts - 1, " cuts"));
  l.scatter_sums = pin.sequence_parallel.value_or(false) && l.tensor > 1;
  int64_t all = l.sample_ranks(), group = pin.zero_group.value_or(all);
  if (group == PinRecipe::kNode) {
    group = all > kDevicesOfANode ? kDevicesOfANode : all % 2 == 0 ? std::max<int64_t>(all / 2, 1) : all;
    if (l.zero > 0 && group < all) {
      warnings.push_back(cat("zero_group: node: taken as groups of ", group, " of the ", all,
                             " data-parallel ranks; pin zero_group to a number to choose another"));
    }
  }
  if (group < 1 || all % group != 0) {
    return absl::InvalidArgumentError(
        cat("pin zero_group: ", group, " does not divide the ", all, " data-parallel ranks"));
  }
  l.zero_group = group;
  return l;
}

// "data 4 x tensor 2"
std::string axes_text(const std::map<std::string, int64_t>& axes) {
  std::string text;
  for (const auto& [name, size] : axes) append(text, text.empty() ? "" : " x ", name, " ", size);
  return text.empty() ? "one rank" : text;
}

// What a stage leaves out is as it is pinned for all.
std::map<std::string, int64_t> axes_of_stage(const PinRecipe& pin, size_t stage) {
  std::map<std::string, int64_t> axes = pin.axes;
  for (const auto& [name, size] : pin.stages[stage]) axes[name] = size;
  axes.erase("pipeline");
  return axes;
}

// `shares` stages leave their data axis open; each takes a multiple of `smallest` ranks.
absl::Status misfit_of_open_stages(const PinRecipe& pin, int64_t ranks, int64_t taken, int64_t shares,
                                   int64_t smallest) {
  const int64_t step = shares * smallest, left = ranks - taken, less = left / step * step;
  std::string stages;
  for (size_t s = 0; s < pin.stages.size(); ++s) {
    const std::map<std::string, int64_t> axes = axes_of_stage(pin, s);
    if (!axes.count("data")) append(stages, stages.empty() ? "" : " and ", s, " (", axes_text(axes), ")");
  }
  return absl::InvalidArgumentError(
      cat("pin stages: stage", shares > 1 ? "s " : " ", stages, shares > 1 ? " leave their" : " leaves its",
          " data axis open", shares > 1 ? ", so they have equally many ranks" : "", ": expected a multiple of ", step,
          " ranks", taken > 0 ? cat(" beside the ", taken, " of the other stages") : "", ", found ",
          std::max<int64_t>(left, 0), taken > 0 ? cat(" of ", ranks) : "", "; use ",
          less > 0 ? cat(taken + less, " or ") : "", taken + std::max<int64_t>(less, 0) + step, " ranks, or say ",
          shares > 1 ? "each stage's data axis" : "the stage's data axis"));
}

// The ranks of each stage.
absl::StatusOr<std::vector<int64_t>> ranks_of_stages(const PinRecipe& pin, std::optional<int64_t> ranks) {
  const int64_t stages = static_cast<int64_t>(pin.stages.size());
  if (int64_t pinned = pin.axis("pipeline").value_or(stages); pinned != stages)
    return absl::InvalidArgumentError(
        cat("pin stages: ", stages, " stages, and pin pipeline: ", pinned, "; expected the same number"));
  std::vector<int64_t> of_stage;
  std::vector<size_t> open;  // stages whose data axis is not said
  int64_t taken = 0, most = 1;
  for (size_t s = 0; s < pin.stages.size(); ++s) {
    int64_t& n = of_stage.emplace_back(1);
    const std::map<std::string, int64_t> axes = axes_of_stage(pin, s);
    for (const auto& [name, size] : axes) n *= size;
    most = std::max(most, n);
    if (!axes.count("data")) open.push_back(s);
    taken += axes.count("data") ? n : 0;
  }
  if (ranks && open.empty() && taken != *ranks)
    return absl::InvalidArgumentError(cat("pin stages: ", stages, " stages take ", taken, " ranks, and --ranks says ",
                                          *ranks, "; expected the same number"));
  // Open stages are equally large, and each takes whole multiples of its own axes.
  int64_t smallest = 1, each = most;
  for (size_t s : open) smallest = std::lcm(smallest, of_stage[s]);
  const int64_t shares = static_cast<int64_t>(open.size());
  if (ranks && shares > 0) {
    const int64_t left = *ranks - taken, step = shares * smallest;
    if (left < step || left % step != 0) return misfit_of_open_stages(pin, *ranks, taken, shares, smallest);
    each = left / shares;
  }
  for (size_t s : open) {
    if (each % of_stage[s] != 0)
      return absl::InvalidArgumentError(cat("pin stages: stage ", s, " (", axes_text(axes_of_stage(pin, s)),
                                            ") takes a multiple of ", of_stage[s], " ranks, and ", each,
                                            " are on the largest stage; say its data axis, or use another number of "
                                            "ranks"));
    of_stage[s] = each;
  }
  return of_stage;
}

absl::StatusOr<ParallelLayout> different_stages(const Recipe& recipe, std::optional<int64_t> ranks,
                                                std::vector<std::string>& warnings) {
  const int64_t stages = static_cast<int64_t>(recipe.pin.stages.size());
  PARTITA_ASSIGN_OR_RETURN(const std::vector<int64_t> of_stage, ranks_of_stages(recipe.pin, ranks));
  std::vector<ParallelLayout> layouts;
  for (size_t s = 0; s < recipe.pin.stages.size(); ++s) {
    Recipe alike = recipe;
    alike.pin.axes = axes_of_stage(recipe.pin, s);
    alike.pin.axes["pipeline"] = stages;
    std::vector<std::string> said_before;
    auto layout = equal_stages(alike, of_stage[s] * stages, s == 0 ? warnings : said_before);
    if (!layout.ok()) return with_context(layout.status(), cat("pin stages: stage ", s));
    layouts.push_back(*std::move(layout));
  }
  auto most = std::max_element(layouts.begin(), layouts.end(), [](const ParallelLayout& a, const ParallelLayout& b) {
    return a.sample_ranks() < b.sample_ranks();
  });
  ParallelLayout all = *most;
  const bool same = std::all_of(layouts.begin(), layouts.end(), [&](const ParallelLayout& l) {
    return l.data == all.data && l.expert == all.expert && l.context == all.context && l.tensor == all.tensor;
  });
  if (!same) all.stages = std::move(layouts);
  return all;
}

}  // namespace

absl::StatusOr<ParallelLayout> pinned_layout(const Recipe& recipe, std::optional<int64_t> ranks,
                                             std::vector<std::string>& warnings) {
  return recipe.pin.stages.empty() ? equal_stages(recipe, ranks, warnings) : different_stages(recipe, ranks, warnings);
}

}  // namespace partita
