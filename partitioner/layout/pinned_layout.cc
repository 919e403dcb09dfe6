#include "partitioner/layout/pinned_layout.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/cat.h"
#include "base/status.h"

namespace partita {
namespace {

constexpr int64_t kChunks = 2;  // of an interleaved stage, where nothing is pinned

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
  if (recipe.run.skips())
    return refuse("run.on_nonfinite: skip: whether a step is finite is not known on all stages then",
                  "use on_nonfinite: rollback");
  if (recipe.compress != Compression::kNone) return refuse("compress", "leave it out");
  if (recipe.pin.offload.value_or(OffloadMode::kNone) != OffloadMode::kNone)
    return refuse("offload: weights are stashed on the device", "leave it out");
  if (recipe.pin.overlap_micro_batches.value_or(1) > 1)
    return refuse("overlap_micro_batches: each micro-batch meets what the one before has updated", "leave it out");
  return absl::OkStatus();
}

// The layout that all stages would have if they were like one.
absl::StatusOr<Layout> equal_stages(const Recipe& recipe, std::optional<int64_t> ranks,
                                    std::vector<std::string>& warnings) {
  const PinRecipe& pin = recipe.pin;
  Layout l;
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
  l.buckets = pin.bucket_bytes;
  l.reshard_after_forward = pin.reshard_after_forward.value_or(true);
  l.prefetch_blocks = pin.prefetch_blocks;
  l.overlap_micro_batches = pin.overlap_micro_batches;
  l.overlap_products = pin.overlap_products;
  if (l.schedule == PipelineSchedule::kInterleaved) l.interleave = pin.interleave.value_or(kChunks);
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
  l.cut_names = pin.cuts;
  if (const int64_t parts = l.pipeline * l.interleave;
      !l.cut_names.empty() && static_cast<int64_t>(l.cut_names.size()) != parts - 1)
    return absl::InvalidArgumentError(cat("pin cuts: ", l.cut_names.size(), " cuts make ", l.cut_names.size() + 1,
                                          " parts, and there are ", l.pipeline, " stages of ", l.interleave,
                                          " chunks; expected ", parts - 1, " cuts"));
  l.sequence_parallel = pin.sequence_parallel.value_or(false) && l.tensor > 1;
  l.micro_batch = pin.micro_batch ? *pin.micro_batch : recipe.batch.micro.value_or(0);
  l.recompute_blocks = pin.recompute_blocks;
  l.recompute = l.recompute_blocks.empty() ? pin.recompute.value_or(recipe.recompute) : RecomputeMode::kNone;
  PARTITA_RETURN_IF_ERROR(check_offload(pin));
  l.offload = pin.offload.value_or(OffloadMode::kNone);
  l.offload_fraction = pin.offload_fraction.value_or(1);
  l.zero_group = pin.zero_group.value_or(0);
  if (pin.zero_group == PinRecipe::kNode) l.zero_group = Layout::kNode;
  const int64_t all = l.sample_ranks(), group = l.shard_ranks();
  l.hierarchical_group = pin.hierarchical_group.value_or(0);
  if (l.hierarchical_group > 0 && all % l.hierarchical_group != 0) {
    return absl::InvalidArgumentError(
        cat("pin hierarchical_group: ", l.hierarchical_group, " does not divide the ", all, " data-parallel ranks"));
  }
  if (l.hierarchical_group > 0 && recipe.compress != Compression::kNone)
    return absl::InvalidArgumentError(
        "pin hierarchical_group: compressed gradients are summed over all ranks at once; leave it out, or compress");
  if (l.zero_group == Layout::kNode && l.zero > 0 && group < all) {
    warnings.push_back(cat("zero_group: node: taken as groups of ", group, " of the ", all,
                           " data-parallel ranks; pin zero_group to a number to choose another"));
  }
  if (group < 1 || all % group != 0) {
    return absl::InvalidArgumentError(
        cat("pin zero_group: ", group, " does not divide the ", all, " data-parallel ranks"));
  }
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

absl::StatusOr<Layout> different_stages(const Recipe& recipe, std::optional<int64_t> ranks,
                                        std::vector<std::string>& warnings) {
  const int64_t stages = static_cast<int64_t>(recipe.pin.stages.size());
  PARTITA_ASSIGN_OR_RETURN(const std::vector<int64_t> of_stage, ranks_of_stages(recipe.pin, ranks));
  std::vector<Layout> layouts;
  for (size_t s = 0; s < recipe.pin.stages.size(); ++s) {
    Recipe alike = recipe;
    alike.pin.axes = axes_of_stage(recipe.pin, s);
    alike.pin.axes["pipeline"] = stages;
    std::vector<std::string> said_before;
    auto layout = equal_stages(alike, of_stage[s] * stages, s == 0 ? warnings : said_before);
    if (!layout.ok()) return with_context(layout.status(), cat("pin stages: stage ", s));
    layouts.push_back(*std::move(layout));
  }
  Layout all = *std::max_element(layouts.begin(), layouts.end(),
                                 [](const Layout& a, const Layout& b) { return a.sample_ranks() < b.sample_ranks(); });
  for (const Layout& l : layouts) {
    all.stages.push_back({l.data, l.tensor, l.context, l.expert});
    all.sequence_parallel = all.sequence_parallel || l.sequence_parallel;
  }
  const bool same =
      std::all_of(all.stages.begin(), all.stages.end(), [&](const Layout::StageAxes& s) { return s == all.stages[0]; });
  if (same) all.stages.clear();
  if (!same && all.hierarchical_group > 0)
    return absl::InvalidArgumentError(
        "pin hierarchical_group: stages that differ sum over all their ranks at once; leave it out, or use equal "
        "stages");
  return all;
}

}  // namespace

absl::Status check_offload(const PinRecipe& pin) {
  const OffloadMode mode = pin.offload.value_or(OffloadMode::kNone);
  if (!pin.offload_fraction || mode == OffloadMode::kOptimizer) return absl::OkStatus();
  return absl::InvalidArgumentError(
      cat("pin offload_fraction: ", *pin.offload_fraction,
          " is of the optimizer's states; expected beside it offload: optimizer, found offload: ", enum_name(mode),
          "; leave one of them out"));
}

absl::StatusOr<Layout> pinned_layout(const Recipe& recipe, std::optional<int64_t> ranks,
                                     std::vector<std::string>& warnings) {
  return recipe.pin.stages.empty() ? equal_stages(recipe, ranks, warnings) : different_stages(recipe, ranks, warnings);
}

}  // namespace partita
