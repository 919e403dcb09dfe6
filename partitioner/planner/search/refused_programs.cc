#include "partitioner/planner/search/refused_programs.h"

#include <algorithm>

#include "partitioner/planner/space/problem.h"

namespace partita {
namespace {

constexpr size_t kRefusals = 3;  // of layouts that divide work alike, before others are judged by them
constexpr double kAnotherProgram = 32;
// Below that it may be NCCL's communicators, which take tens of megabytes each however small the model is.
constexpr double kLeastRoom = 1 << 28;

// Whether each block keeps as much for backward on the device, or more. What is on its way to the host or back takes
// room there as well, and what gradients of weights that are put off read, where it was computed again.
bool keeps_as_much(const Layout& l, const Layout& of) {
  for (size_t b = 0; b <= std::max(l.recompute_blocks.size(), of.recompute_blocks.size()); ++b) {
    const RecomputeMode mine = l.recompute_of(b), theirs = of.recompute_of(b);
    const bool puts_off = l.schedule == PipelineSchedule::kZeroBubble;
    const bool least =
        on_device(theirs) == RecomputeMode::kFull &&
        (!waits_on_host(mine) || (waits_on_host(theirs) && !(puts_off && mine == RecomputeMode::kOffload)));
    if (mine != theirs && mine != RecomputeMode::kNone && !least) return false;
  }
  return true;
}

// Whether as much of the states lies on the device, or more.
bool offloads_less(const Layout& l, const Layout& of) {
  return l.offload < of.offload || (l.offload == of.offload && l.offload_fraction <= of.offload_fraction);
}

// A layout whose program takes at least the memory of `of`'s: it stores as much or more, or keeps more for backward.
bool needs_as_much(const Layout& l, const Layout& of) {
  Layout same = l;
  if (l.schedule == PipelineSchedule::kZeroBubble && of.schedule == PipelineSchedule::k1f1b)
    same.schedule = of.schedule;
  same.zero = of.zero, same.offload = of.offload, same.offload_fraction = of.offload_fraction;
  same.micro_batch = of.micro_batch;
  same.recompute = of.recompute, same.recompute_blocks = of.recompute_blocks;
  same.buckets = of.buckets;  // they follow from the rest
  same.prefetch_blocks = of.prefetch_blocks, same.overlap_micro_batches = of.overlap_micro_batches;
  return same == of && l.prefetched() >= of.prefetched() && l.overlapped() >= of.overlapped() && l.zero <= of.zero &&
         offloads_less(l, of) && keeps_as_much(l, of) && l.micro_batch >= of.micro_batch;
}

// The cost model's count of what a stage takes beside the reserve.
double counted(const Prediction& p, size_t stage) { return p.memory[stage].total() - p.memory[stage].reserve; }

}  // namespace

PricedLayout priced(double seconds, const Prediction& p, Layout layout) {
  const size_t worst = static_cast<size_t>(p.worst_stage);
  return {seconds, p.room(worst) - counted(p, worst), counted(p, worst) / p.room(worst), std::move(layout)};
}

void hold_program(Prediction& p, std::vector<double> bytes) {
  p.program_bytes = std::move(bytes);
  auto over = [&](size_t stage) { return p.program_bytes[stage] - p.room(stage); };
  size_t worst = 0;
  for (size_t s = 1; s < p.program_bytes.size(); ++s) {
    if (over(s) > over(worst)) worst = s;
  }
  p.worst_stage = static_cast<int64_t>(worst);
  p.missing_bytes = std::max(0.0, over(worst));
  p.fits = p.missing_bytes <= 0;
}

bool is_another_program(const Prediction& p, const std::vector<double>& bytes) {
  for (size_t s = 0; s < bytes.size(); ++s) {
    if (bytes[s] > kAnotherProgram * std::max({p.room(s), counted(p, s), kLeastRoom})) return true;
  }
  return false;
}

// What a program takes beyond the cost model's count is alike for layouts of one kind, whatever they store where. What
// ZeRO-3 gathers for each pass has an error of its own.
RefusedPrograms::Activations RefusedPrograms::activations_kind(const Layout& l) {
  return {l.tensor,   l.pipeline,   l.context,           l.expert, l.micro_batch, l.recompute,
          l.schedule, l.interleave, l.sequence_parallel, l.stages, l.zero >= 3};
}

// And likely is so for layouts that divide the work in the same ways.
RefusedPrograms::Division RefusedPrograms::division_kind(const Layout& l) {
  return {l.tensor > 1, l.pipeline > 1, l.context > 1, l.expert > 1, l.recompute, l.zero >= 3};
}

void RefusedPrograms::add(const Layout& layout, const Prediction& p) {
  const size_t worst = static_cast<size_t>(p.worst_stage);
  all_.push_back({layout, true, p.program_bytes[worst] - counted(p, worst), micro_batches(problem_, layout) == 1});
  ratios_[division_kind(layout)].push_back(p.program_bytes[worst] / counted(p, worst));
}

void RefusedPrograms::add(const Layout& layout) { all_.push_back({layout}); }

bool RefusedPrograms::covers(const PricedLayout& x) const {
  for (const Refused& r : all_) {
    if (x.layout == r.layout) return true;
    if (!r.allocated) continue;
    const bool sums = r.one_batch || micro_batches(problem_, x.layout) > 1;  // else it keeps no f32 gradients
    if (sums && needs_as_much(x.layout, r.layout)) return true;
    if (activations_kind(x.layout) == activations_kind(r.layout) && x.left < r.beyond) return true;
  }
  const auto ratios = ratios_.find(division_kind(x.layout));
  return ratios != ratios_.end() && ratios->second.size() >= kRefusals &&
         x.share * *std::min_element(ratios->second.begin(), ratios->second.end()) > 1;
}

double RefusedPrograms::beyond(const Layout& l, double room) const {
  double most = 0;
  for (const Refused& r : all_) {
    if (r.allocated && activations_kind(r.layout) == activations_kind(l)) most = std::max(most, r.beyond);
  }
  const auto ratios = ratios_.find(division_kind(l));
  if (ratios != ratios_.end() && ratios->second.size() >= kRefusals)
    most = std::max(most, room * (1 - 1 / *std::min_element(ratios->second.begin(), ratios->second.end())));
  return most;
}

}  // namespace partita
