#include "partitioner/planner/search/waiting_less.h"

#include <algorithm>

#include "partitioner/planner/search/layout_order.h"

namespace partita {
namespace {

constexpr size_t kMostUnits = 256;
// Of the seconds that exchanges among all ranks take: groups that save less are not looked at. Times those of the best
// groups: larger ones, with less in memory, are looked at as well.
constexpr double kWorthGroups = 0.98, kNearlyBest = 1.1;

}  // namespace

bool take_turns(const Problem& problem, const Space& space, Layout& l) {
  const bool waits = any_stage(l, [](const Layout& s) { return s.tensor * s.context * s.expert > 1; });
  if (!problem.own_programs || problem.workload->units.size() > kMostUnits || space.overlap_micro_batches ||
      l.pipeline == 1 || !waits)
    return false;
  l.overlap_micro_batches = kInTurns;
  return true;
}

std::vector<Layout> waiting_less(CostModel& model, const Space& space, const Candidate& c, double fastest) {
  const Breakdown& b = c.prediction.breakdown;
  std::vector<Layout> out;
  if (!space.prefetch_blocks && c.prediction.step_seconds - b.gathers < fastest)
    out = model.prefetching_further(c.layout);
  if (c.prediction.step_seconds - b.within_passes() >= fastest) return out;
  std::vector<Layout> ahead = {out.empty() ? c.layout : out.back()};
  if (!space.overlap_micro_batches) {
    if (auto in_turns = model.taking_turns(ahead[0])) out.push_back(*in_turns), ahead.push_back(*std::move(in_turns));
  }
  if (space.overlap_products) return out;
  for (const Layout& l : ahead) {
    if (auto parted = model.with_products_in_parts(l)) out.push_back(*std::move(parted));
  }
  return out;
}

bool may_wait_less_in_groups(const CostModel& model, const Space& space, const Candidate& c, double fastest) {
  const Layout& l = c.layout;
  const Breakdown& b = c.prediction.breakdown;
  return l.zero > 0 && l.zero_group == 0 && space.zero_group_open && model.may_group(l) &&
         c.prediction.step_seconds - b.gathers - b.gradients - b.overlap < fastest;
}

std::vector<int64_t> group_sizes(CostModel& model, const Layout& l) {
  std::vector<std::pair<int64_t, double>> all;  // ranks, seconds of exchanges
  const double most = kWorthGroups * model.exchange_seconds(model.with_exchanges(l));
  for (int64_t n : divisors(l.sample_ranks() / l.expert)) {
    Layout grouped = l;
    grouped.zero_group = n * l.expert;
    if (grouped.zero_group == 1 || grouped.zero_group == l.sample_ranks()) continue;
    const double seconds = model.exchange_seconds(model.with_exchanges(grouped));
    if (seconds < most) all.emplace_back(grouped.zero_group, seconds);
  }
  if (all.empty()) return {};
  const auto [best, least] = *std::ranges::min_element(all, {}, &std::pair<int64_t, double>::second);
  const double near = kNearlyBest * least;
  const auto largest = std::find_if(all.rbegin(), all.rend(), [&](const auto& g) { return g.second < near; });
  if (largest->first == best) return {best};
  return {largest->first, best};
}

}  // namespace partita
