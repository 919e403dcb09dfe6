#include "partitioner/planner/space/layout_space.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "base/cat.h"
#include "base/status.h"
#include "partitioner/layout/pinned_layout.h"
#include "partitioner/planner/workload/pinned_cuts.h"

namespace partita {
namespace {

constexpr int64_t kMostDivided = 16;  // devices of one kind whose stages may differ
constexpr int64_t kWidestTensor = 64, kWidestContext = 64, kMostInterleave = 16, kLargestMicroBatch = 256;

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

namespace {

// Pins of stages as those of one with the most sample ranks, and what they are where they differ.
absl::StatusOr<PinRecipe> pins_of_largest(PinRecipe pin, int64_t devices, std::vector<Layout::StageAxes>& stages) {
  Recipe recipe;
  recipe.pin = pin;
  recipe.pin.cuts.clear();
  std::vector<std::string> told_later;
  PARTITA_ASSIGN_OR_RETURN(Layout l, pinned_layout(recipe, devices, told_later));
  stages = std::move(l.stages);
  pin.axes = {
      {"data", l.data}, {"tensor", l.tensor}, {"pipeline", l.pipeline}, {"context", l.context}, {"expert", l.expert}};
  pin.stages.clear();
  return pin;
}

// Whether stages may differ without being pinned to: those of one group from those of others, or on a few devices that
// no power of two divides, those of the first from those of the rest.
bool divide_devices(const Problem& problem, const PinRecipe& pin, Space& s) {
  const std::vector<DeviceGroup>& groups = problem.cluster->groups;
  const bool one_stage = problem.workload->whole_batches || pin.axis("pipeline").value_or(2) == 1;
  if (one_stage || groups.size() > Space::kMostSections) return false;
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
  int64_t devices = problem.devices(), n = block_count(w);
  auto undivided = [&](const char* name, int64_t size) {
    return absl::InvalidArgumentError(
        cat("pin ", name, ": ", size, " does not divide the ", devices, " devices of the cluster"));
  };
  const bool may_differ = s.stages.empty() && divide_devices(problem, pin, s);
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
  PARTITA_RETURN_IF_ERROR(axis("pipeline", s.pipeline, s.ranges.pipeline, n));
  PARTITA_RETURN_IF_ERROR(axis("context", s.context, s.ranges.context,
                               w.sequence > 1 ? std::min(kWidestContext, static_cast<int64_t>(w.sequence / 1024)) : 1));
  PARTITA_RETURN_IF_ERROR(axis("expert", s.expert, s.ranges.expert, static_cast<int64_t>(w.experts)));
  // A pinned schedule is one of stages, as the compiler takes it.
  if (pin.interleave.value_or(1) > 1 && !pin.schedule) pin.schedule = PipelineSchedule::kInterleaved;
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
  // A pinned ZeRO stage is one over all ranks unless groups are pinned beside it.
  s.zero_group = pin.zero_group.value_or(0), s.zero_group_open = !pin.zero && !pin.zero_group;
  s.zero_group_of_node = pin.zero_group && s.zero_group == PinRecipe::kNode;
  if (s.zero_group_of_node) {  // of the smallest nodes, where groups of devices have others
    const auto& all = problem.cluster->groups;
    s.zero_group = std::min_element(all.begin(), all.end(), [](const DeviceGroup& a, const DeviceGroup& b) {
                     return a.devices_per_node < b.devices_per_node;
                   })->devices_per_node;
  }
  s.buckets = pin.bucket_bytes, s.hierarchical_group = pin.hierarchical_group.value_or(0);
  s.reshard_after_forward = pin.reshard_after_forward.value_or(true), s.prefetch_blocks = pin.prefetch_blocks;
  s.overlap_micro_batches = pin.overlap_micro_batches, s.overlap_products = pin.overlap_products;
  s.sequence_parallel = pinned_or<bool>(pin.sequence_parallel, {false, true});
  RecomputeMode asked = pin.recompute.value_or(recompute);
  s.recompute_blocks = pin.recompute_blocks;
  if (const size_t named = s.recompute_blocks.size(); named > static_cast<size_t>(n))
    return absl::InvalidArgumentError(
        cat("pin recompute: block ", named - 1, " is named, and the model has ", n, " blocks, numbered from 0"));
  if (!s.recompute_blocks.empty()) asked = RecomputeMode::kNone;
  s.recompute = {asked};
  s.recompute_by_block = asked == RecomputeMode::kAuto && problem.own_programs;
  const std::vector<DeviceGroup>& groups = problem.cluster->groups;
  if (std::any_of(groups.begin(), groups.end(), [](const DeviceGroup& g) { return g.device.has_host(); }))
    s.least_kept = RecomputeMode::kFullOffload;
  if (asked == RecomputeMode::kAuto) {
    s.recompute = {RecomputeMode::kNone};
    if (!problem.options.flash) s.recompute.push_back(RecomputeMode::kSelective);  // of scores, which flash never keeps
    s.recompute.push_back(RecomputeMode::kFull);
  }
  PARTITA_RETURN_IF_ERROR(check_offload(pin));
  s.offload_fraction = pin.offload_fraction;
  // A pinned ZeRO stage says where the states are kept: on the devices unless offload is pinned beside it. Devices that
  // are the host have nowhere to offload to.
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

int64_t Space::zero_group_of(const Layout& l) const {
  return zero_group_of_node ? std::gcd(l.data * l.expert, zero_group) : zero_group;
}

bool Space::leaves_cuts_open(const Problem& problem, const Layout& l) const {
  const bool mixed = problem.cluster->groups.size() > 1;
  return l.pipeline > 1 && cuts.empty() &&
         (searches_stages(l) || (l.interleave == 1 && (mixed || !ranges.pipeline.pinned)));
}

std::string Space::other_parts(const Layout& l) const {
  const int64_t chunks = static_cast<int64_t>(cuts.size()), wanted = l.pipeline * l.interleave;
  if (chunks == 0 || chunks == wanted) return "";
  return cat("pin cuts: ", chunks - 1, " cuts make ", chunks, " parts, and pipeline ", l.pipeline, " x interleave ",
             l.interleave, " asks for ", wanted);
}

}  // namespace partita
