#include "partitioner/planner/space/layout_space.h"

#include <algorithm>
#include <bit>

#include "base/cat.h"
#include "base/status.h"
#include "partitioner/layout/parallel_layout.h"
#include "partitioner/planner/workload/pinned_cuts.h"

namespace partita {
namespace {

constexpr int64_t kMostDivided = 16;  // devices of one kind whose stages may differ
constexpr int64_t kWidestTensor = 64, kWidestContext = 64, kMostInterleave = 16, kLargestMicroBatch = 256;

int64_t blocks(const Workload& w) {
  int64_t n = 0;
  for (size_t k = 0; k < w.units.size(); ++k) n += w.unit(k).is_block();
  return std::max<int64_t>(1, n);
}

template <typename T>
std::vector<T> pinned_or(const std::optional<T>& pin, std::vector<T> all) {
  return pin ? std::vector<T>{*pin} : std::move(all);
}

}  // namespace

std::vector<int64_t> divisors(int64_t n) {
  std::vector<int64_t> out, large;
  for (int64_t d = 1; d * d <= n; ++d) {
    if (n % d) continue;
    out.push_back(d);
    if (d * d != n) large.push_back(n / d);
  }
  out.insert(out.end(), large.rbegin(), large.rend());
  return out;
}

std::vector<int64_t> AxisRange::sizes(int64_t devices) const {
  if (pinned) return devices % *pinned == 0 ? std::vector<int64_t>{*pinned} : std::vector<int64_t>{};
  std::vector<int64_t> out = divisors(devices);
  std::erase_if(out, [&](int64_t d) { return d > most; });
  return out;
}

int64_t Layout::first_device(int64_t stage) const {
  int64_t before = 0;
  for (int64_t s = 0; s < stage; ++s) before += devices_of_stage(s);
  return before;
}

Layout Layout::of_stage(int64_t stage) const {
  Layout own = *this;
  if (stages.empty()) return own;
  const StageAxes& axes = stages[static_cast<size_t>(stage)];
  own.stages.clear();
  own.data = axes.data, own.tensor = axes.tensor, own.context = axes.context, own.expert = axes.expert;
  own.sequence_parallel = sequence_parallel && own.tensor > 1;
  own.micro_batch = micro_batch * (data * expert) / (own.data * own.expert);
  return own;
}

namespace {

// "data 8 x tensor 4"
std::string axes_text(int64_t data, int64_t tensor, int64_t pipeline, int64_t context, int64_t expert) {
  std::string text;
  auto axis = [&](std::string_view name, int64_t size) {
    if (size > 1) append(text, text.empty() ? "" : " x ", name, " ", size);
  };
  axis("data", data), axis("tensor", tensor), axis("pipeline", pipeline), axis("context", context);
  axis("expert", expert);
  return text.empty() ? "one device" : text;
}

}  // namespace

std::string describe(const Layout& l) {
  std::string text;
  for (size_t first = 0, next = 0; first < l.stages.size(); first = next) {
    const Layout::StageAxes& s = l.stages[first];
    while (next < l.stages.size() && l.stages[next] == s) ++next;
    const std::string axes = axes_text(s.data, s.tensor, 1, s.context, s.expert);
    append(text, text.empty() ? "" : " | ", next - first > 1 ? cat(next - first, " x (", axes, ")") : axes);
  }
  if (text.empty()) {
    text = axes_text(l.data, l.tensor, l.pipeline, l.context, l.expert);
  } else {
    text = cat("stages ", text);
  }
  if (l.sequence_parallel) text += ", sequence parallel";
  if (l.zero > 0) append(text, ", ZeRO-", l.zero);
  if (l.zero >= 3 && !l.reshard_after_forward) text += " gathered once a step";
  append(text, ", micro-batch ", l.micro_batch);
  if (l.pipeline > 1) append(text, ", ", enum_name(l.schedule));
  if (l.interleave > 1) append(text, " ", l.interleave);
  if (l.recompute != RecomputeMode::kNone) append(text, ", recompute ", enum_name(l.recompute));
  if (l.offload != OffloadMode::kNone) append(text, ", offload ", enum_name(l.offload));
  if (!l.cuts.empty()) text += ", uneven stages";
  return text;
}

int64_t micro_batches(const Problem& problem, const Layout& l) {
  int64_t step = l.data * l.expert * l.micro_batch;
  return step > 0 && problem.global_batch % step == 0 ? problem.global_batch / step : 0;
}

namespace {

std::string in_parts(const Problem& problem, int64_t own, int64_t micro) {
  return cat("a rank computes its ", own, " samples of a run at once, not in micro-batches of ", micro, ": ",
             problem.workload->whole_runs);
}

// Why the ranks cannot cut the runs of the model into such micro-batches; empty where they can. A file with a fixed
// batch takes so many samples at a time, any other all of them.
std::string misfit(const Problem& problem, const Layout& l) {
  const int64_t samples = problem.workload->exported_batch, ranks = l.data * l.expert;
  if (samples != 0 && problem.global_batch % samples != 0)
    return cat("a global batch of ", problem.global_batch, " is not a multiple of the ", samples,
               " samples that the model file takes at a time");
  if (problem.workload->whole_batches) {
    const int64_t run = samples == 0 ? problem.global_batch : samples;
    if (ranks * l.micro_batch == run) return "";
    return cat("batch statistics need a run's ", run, " samples on all ranks at once, found ", ranks,
               " ranks with a micro-batch of ", l.micro_batch);
  }
  if (samples == 0) {
    const int64_t own = problem.global_batch / ranks;
    return problem.workload->whole_runs.empty() || own == l.micro_batch ? "" : in_parts(problem, own, l.micro_batch);
  }
  const int64_t runs = problem.global_batch / samples;
  for (int64_t slices = std::min(ranks, runs); slices >= 1; --slices) {
    auto shares = [&](const Layout::StageAxes& s) {
      return shares_runs(s.data * s.expert, s.expert, slices, runs, samples);
    };
    if (!shares({.data = l.data, .expert = l.expert}) || !std::all_of(l.stages.begin(), l.stages.end(), shares))
      continue;
    const int64_t own = samples / (ranks / slices);
    if (!problem.workload->whole_runs.empty() && own != l.micro_batch) return in_parts(problem, own, l.micro_batch);
    if (own % l.micro_batch == 0) return "";
    return cat("the model file takes ", samples, " samples at a time, ", own, " of them on a rank: not a multiple of ",
               "micro-batch ", l.micro_batch);
  }
  return cat("data ", l.data, " x expert ", l.expert, " cannot divide ", runs, " runs of the model file's ", samples,
             " samples");
}

}  // namespace

std::string invalid(const Problem& problem, const Layout& l) {
  const Workload& w = *problem.workload;
  if (l.devices() != problem.devices()) return cat("uses ", l.devices(), " of ", problem.devices(), " devices");
  int64_t m = micro_batches(problem, l);
  if (const int64_t ranks = l.data * l.expert; problem.global_batch % ranks != 0) {
    const int64_t less = problem.global_batch / ranks * ranks;
    return cat("a global batch of ", problem.global_batch, " cannot be shared by ", ranks, " data-parallel ranks; ",
               less > 0 ? cat(less, " and ") : "", less + ranks, " can");
  }
  if (const int64_t ranks = l.data * l.expert; l.zero > 0 && l.zero_group > 0 && ranks % l.zero_group != 0)
    return cat("zero_group ", l.zero_group, " does not divide ", ranks, " data-parallel ranks");
  if (m == 0)
    return cat("a global batch of ", problem.global_batch, " is not a multiple of data ", l.data, " x expert ",
               l.expert, " x micro-batch ", l.micro_batch);
  int64_t n = blocks(w);
  if (l.cut_names.empty() && l.pipeline * l.interleave > std::max<int64_t>(n, 1) && l.pipeline > 1)
    return cat("pipeline ", l.pipeline, " x interleave ", l.interleave, " needs as many blocks; the model has ", n);
  for (const Layout::StageAxes& stage : l.stages) {
    if (l.micro_batch * l.data * l.expert % (stage.data * stage.expert) != 0)
      return cat("a micro-batch has ", l.micro_batch * l.data * l.expert, " samples, and a stage has ",
                 stage.data * stage.expert, " ranks that share them");
  }
  if (l.schedule == PipelineSchedule::kInterleaved && l.interleave > 1 && m % l.pipeline != 0)
    return cat("interleaving needs micro-batches (", m, ") in a multiple of the stages (", l.pipeline, ")");
  if (l.schedule == PipelineSchedule::kPipedream) {
    if (l.pipeline == 1) return "pipedream needs at least 2 stages";
    if (problem.clip) return "pipedream goes without clip_grad_norm";
    if (problem.options.precision == Precision::kFp16) return "pipedream goes without fp16's loss scale; use bf16";
    if (problem.compress != Compression::kNone) return "pipedream goes without compress";
    if (l.offload != OffloadMode::kNone) return "pipedream goes without offload";
  }
  return misfit(problem, l);
}

namespace {

// Pins of stages as those of one with the most sample ranks, and what they are where they differ.
absl::StatusOr<PinRecipe> pins_of_largest(PinRecipe pin, int64_t devices, std::vector<Layout::StageAxes>& stages) {
  Recipe recipe;
  recipe.pin = pin;
  recipe.pin.cuts.clear();
  std::vector<std::string> told_later;
  PARTITA_ASSIGN_OR_RETURN(ParallelLayout l, pinned_layout(recipe, devices, told_later));
  for (const ParallelLayout& s : l.stages) stages.push_back({s.data, s.tensor, s.context, s.expert});
  pin.axes = {
      {"data", l.data}, {"tensor", l.tensor}, {"pipeline", l.pipeline}, {"context", l.context}, {"expert", l.expert}};
  pin.stages.clear();
  return pin;
}

}  // namespace

namespace {

// Whether stages may differ without being pinned to: those of one group from those of others, or on a few devices that
// no power of two divides, those of the first from those of the rest.
bool parts_of(const Problem& problem, const PinRecipe& pin, Space& s) {
  const std::vector<DeviceGroup>& groups = problem.cluster->groups;
  const bool one_stage = problem.workload->whole_batches || pin.axis("pipeline").value_or(2) == 1;
  if (one_stage || groups.size() > Space::kMostParts) return false;
  if (const int64_t n = problem.devices();
      groups.size() == 1 && n <= kMostDivided && !std::has_single_bit(static_cast<uint64_t>(n))) {
    // Between nodes where there are several, so that no axis begins in the middle of one.
    const int64_t step = groups[0].nodes > 1 ? groups[0].devices_per_node : 1;
    for (int64_t first = step; first < n; first += step) s.splits.push_back({first, n - first});
  } else if (groups.size() > 1) {
    std::vector<int64_t>& split = s.splits.emplace_back();
    for (const DeviceGroup& g : groups) split.push_back(g.devices());
  }
  return !s.splits.empty();
}

}  // namespace

namespace {

// Where pins leave the devices to the pipeline, that it has stages for them.
absl::Status check_pipeline(const Space& s, int64_t devices, int64_t blocks) {
  if (s.ranges.pipeline.pinned || s.tensor.size() * s.context.size() * s.expert.size() != 1) return absl::OkStatus();
  const int64_t inner = s.tensor[0] * s.context[0] * s.expert[0], replicas = devices / inner;
  auto has_stages = [&](int64_t data) {
    return replicas % data == 0 && std::count(s.pipeline.begin(), s.pipeline.end(), replicas / data) > 0;
  };
  if (devices % inner != 0 || replicas % *s.data != 0 || has_stages(*s.data)) return absl::OkStatus();
  const std::vector<int64_t> sizes = divisors(replicas);
  const auto fits = std::find_if(sizes.begin(), sizes.end(), has_stages);
  return absl::InvalidArgumentError(
      cat("data ", *s.data, " x tensor ", s.tensor[0], " x context ", s.context[0], " x expert ", s.expert[0],
          " leaves ", replicas / *s.data, " stages of a pipeline to ", devices, " devices, and the model has ", blocks,
          blocks == 1 ? " block" : " blocks", " to cut between",
          fits != sizes.end() ? cat("; pin data: ", *fits, " beside") : "; leave data open"));
}

}  // namespace

absl::StatusOr<Space> layout_space(const Problem& problem, const PinRecipe& pins, RecomputeMode recompute,
                                   std::optional<int64_t> micro) {
  const Workload& w = *problem.workload;
  Space s;
  PinRecipe pin = pins;
  if (!pin.stages.empty()) {
    PARTITA_ASSIGN_OR_RETURN(pin, pins_of_largest(std::move(pin), problem.devices(), s.stages));
  }
  int64_t devices = problem.devices(), n = blocks(w);
  auto undivided = [&](const char* name, int64_t size) {
    return absl::InvalidArgumentError(
        cat("pin ", name, ": ", size, " does not divide the ", devices, " devices of the cluster"));
  };
  const bool may_differ = s.stages.empty() && parts_of(problem, pin, s);
  auto axis = [&](const char* name, std::vector<int64_t>& out, AxisRange& range, int64_t most) -> absl::Status {
    range = {pin.axis(name), std::max<int64_t>(1, most)};
    out = range.sizes(devices);
    if (out.empty() && s.stages.empty() && !may_differ) return undivided(name, *range.pinned);
    if (out.empty()) out = {*range.pinned};
    return absl::OkStatus();
  };
  if (!pin.cuts.empty()) {
    PARTITA_ASSIGN_OR_RETURN(s.cuts, pinned_cuts(w, pin.cuts));
    s.cut_names = pin.cuts;
  }
  double widest = 1;  // a split factor that is smaller than the axis is worth nothing
  for (const UnitWork& u : w.kinds) widest = std::max(widest, u.split_factor);
  PARTITA_RETURN_IF_ERROR(
      axis("tensor", s.tensor, s.ranges.tensor, std::min(kWidestTensor, static_cast<int64_t>(widest))));
  // Stages of which each waits for the one before are of use where they are asked for.
  const bool one_run = w.whole_batches && !pin.schedule;
  PARTITA_RETURN_IF_ERROR(axis("pipeline", s.pipeline, s.ranges.pipeline, one_run ? 1 : n));
  PARTITA_RETURN_IF_ERROR(axis("context", s.context, s.ranges.context,
                               w.sequence > 1 ? std::min(kWidestContext, static_cast<int64_t>(w.sequence / 1024)) : 1));
  PARTITA_RETURN_IF_ERROR(axis("expert", s.expert, s.ranges.expert, static_cast<int64_t>(w.experts)));
  // A pinned schedule is one of stages, as the compiler takes it.
  if (pin.schedule && !pin.axis("pipeline") && s.pipeline.size() > 1) std::erase(s.pipeline, 1);
  s.data = pin.axis("data");
  if (s.data && devices % *s.data != 0 && s.stages.empty() && !may_differ) return undivided("data", *s.data);
  if (s.data && s.stages.empty() && !may_differ) PARTITA_RETURN_IF_ERROR(check_pipeline(s, devices, n));
  std::optional<int64_t> micro_pin = pin.micro_batch ? pin.micro_batch : micro;
  if (micro_pin) {
    s.micro_batch = {*micro_pin};
  } else {
    for (int64_t d : divisors(problem.global_batch)) {
      if (d <= kLargestMicroBatch || w.whole_batches) s.micro_batch.push_back(d);
    }
  }
  s.zero = pinned_or<int>(pin.zero, {0, 1, 2, 3});
  s.zero_group = pin.zero_group.value_or(0);
  s.zero_group_of_node = pin.zero_group && s.zero_group == PinRecipe::kNode;
  if (s.zero_group_of_node) {  // of the smallest nodes, where groups of devices have others
    const auto& all = problem.cluster->groups;
    s.zero_group = std::min_element(all.begin(), all.end(), [](const DeviceGroup& a, const DeviceGroup& b) {
                     return a.devices_per_node < b.devices_per_node;
                   })->devices_per_node;
  }
  s.reshard_after_forward = pin.reshard_after_forward.value_or(true);
  s.sequence_parallel = pinned_or<bool>(pin.sequence_parallel, {false, true});
  RecomputeMode asked = pin.recompute.value_or(recompute);
  s.recompute = {asked};
  if (asked == RecomputeMode::kAuto) {
    s.recompute = {RecomputeMode::kNone};
    if (!problem.options.flash) s.recompute.push_back(RecomputeMode::kSelective);  // of scores, which flash never keeps
    s.recompute.push_back(RecomputeMode::kFull);
  }
  // A pinned ZeRO stage says where the states are kept: on the devices unless offload is pinned beside it. Devices that
  // are the host have nowhere to offload to.
  const std::vector<DeviceGroup>& groups = problem.cluster->groups;
  const bool hosts =
      std::all_of(groups.begin(), groups.end(), [](const DeviceGroup& g) { return g.device.host_update_rate == 0; });
  s.offload =
      (pin.zero || hosts) && !pin.offload
          ? std::vector<OffloadMode>{OffloadMode::kNone}
          : pinned_or<OffloadMode>(pin.offload, {OffloadMode::kNone, OffloadMode::kOptimizer, OffloadMode::kAll});
  s.schedule = pinned_or<PipelineSchedule>(pin.schedule, {PipelineSchedule::k1f1b, PipelineSchedule::kInterleaved,
                                                          PipelineSchedule::kZeroBubble, PipelineSchedule::kGpipe});
  if (pin.interleave) {
    s.interleave = {*pin.interleave};
  } else {
    for (int64_t v = 2; v <= kMostInterleave; ++v) s.interleave.push_back(v);
  }
  s.fixed = s.data && s.tensor.size() * s.pipeline.size() * s.context.size() * s.micro_batch.size() == 1 && pin.zero &&
            asked != RecomputeMode::kAuto;
  return s;
}

PinRecipe to_pins(const Layout& l) {
  PinRecipe p;
  p.axes = {
      {"data", l.data}, {"tensor", l.tensor}, {"pipeline", l.pipeline}, {"context", l.context}, {"expert", l.expert}};
  p.zero = l.zero;
  if (l.zero_group > 0) p.zero_group = l.zero_group;
  p.reshard_after_forward = l.reshard_after_forward;
  p.micro_batch = l.micro_batch;
  p.sequence_parallel = l.sequence_parallel;
  p.recompute = l.recompute;
  p.offload = l.offload;
  p.schedule = l.schedule;
  p.interleave = l.interleave;
  p.cuts = l.cut_names;
  for (const Layout::StageAxes& s : l.stages)
    p.stages.push_back({{"data", s.data}, {"tensor", s.tensor}, {"context", s.context}, {"expert", s.expert}});
  return p;
}

}  // namespace partita
