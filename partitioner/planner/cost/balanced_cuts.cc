// Where a layout's stages begin: blocks evenly, or balanced by the time that units take on each stage's devices.
#include <algorithm>
#include <cmath>

#include "partitioner/planner/cost/cost_model.h"

namespace partita {

// Blocks evenly, the first chunks one more where they do not divide; what stands before the first block goes to the
// first chunk, what follows the last to the last.
const std::vector<int>& CostModel::even_cuts(const Layout& l) const {
  const auto [at, fresh] = even_cuts_.try_emplace({l.pipeline, l.interleave});
  if (fresh) at->second = cut_evenly(l);
  return at->second;
}

std::vector<int> CostModel::cut_evenly(const Layout& l) const {
  const Workload& w = *problem_.workload;
  int64_t chunks = l.pipeline * l.interleave, blocks = 0;
  for (size_t k = 0; k < w.units.size(); ++k) blocks += w.unit(k).is_block();
  std::vector<int> cuts(static_cast<size_t>(chunks), 0);
  size_t at = 0;
  for (int64_t p = 0; p < chunks; ++p) {
    // The last chunks get the smaller shares: the loss is there.
    int64_t want = blocks / chunks + (p < blocks % chunks ? 1 : 0);
    while (at < w.units.size() && (want > 0 || !w.unit(at).is_block() || p + 1 == chunks)) {
      if (w.unit(at).is_block() && want-- == 0) break;
      ++cuts[static_cast<size_t>(p)], ++at;
    }
  }
  return cuts;
}

double CostModel::seconds(const UnitCost& c, const Layout& l) {
  return c.forward + c.input_gradient + c.weight_gradient + again_seconds(c, l.recompute, puts_off(false, l)) +
         c.tensor_forward + c.tensor_backward + c.context_forward + c.context_backward + c.expert * 2;
}

double CostModel::heaviest_of_largest(const DeviceGroup& group, const Layout& l) {
  const Workload& w = *problem_.workload;
  const auto& costs = unit_costs(group, l);
  std::vector<double> sum(costs.size(), 0);
  for (int k : w.units) sum[static_cast<size_t>(k)] += seconds(costs[static_cast<size_t>(k)], l);
  return *std::max_element(sum.begin(), sum.end());
}

CostModel::UnitSums CostModel::seconds_before(const Layout& l) {
  const Workload& w = *problem_.workload;
  UnitSums out;
  const StageLayouts layouts(l);
  const std::vector<UnitCost>* last = nullptr;
  for (int64_t s = 0; s < l.pipeline; ++s) {
    const Layout& own = layouts[static_cast<size_t>(s)];
    const auto& costs = s > 0 && problem_.cluster->groups.size() == 1 && l.stages.empty()
                            ? *last
                            : unit_costs(group_of_stage(l, s), own);
    if (&costs != last) {
      last = &costs;
      std::vector<double> each;
      for (const UnitCost& c : costs) each.push_back(seconds(c, own));
      auto& prefix = out.sums.emplace_back(1, 0.0);
      for (int k : w.units) prefix.push_back(prefix.back() + each[static_cast<size_t>(k)]);
    }
    out.run.push_back(out.sums.size() - 1);
  }
  return out;
}

// best[p][k]: the smallest possible time of the slowest of p chunks over the first k units.
std::vector<int> CostModel::cut_by_time(const Layout& l) {
  const Workload& w = *problem_.workload;
  size_t n = w.units.size(), stages = static_cast<size_t>(l.pipeline),
         chunks = stages * static_cast<size_t>(l.interleave);
  if (chunks > n || chunks * n * n > size_t{40000000}) return even_cuts(l);
  const UnitSums seconds = seconds_before(l);
  constexpr double kInfinite = 1e300;
  std::vector<std::vector<double>> best(chunks + 1, std::vector<double>(n + 1, kInfinite));
  std::vector<std::vector<int>> from(chunks + 1, std::vector<int>(n + 1, 0));
  best[0][0] = 0;
  for (size_t p = 1; p <= chunks; ++p) {
    const size_t stage = (p - 1) % stages;
    const auto& prefix = seconds.sums[seconds.run[stage]];
    for (size_t k = p; k + (chunks - p) <= n; ++k) {
      for (size_t j = k; j-- > p - 1;) {
        double last = prefix[k] - prefix[j];
        if (last >= best[p][k]) break;
        double value = std::max(best[p - 1][j], last);
        if (value < best[p][k]) best[p][k] = value, from[p][k] = static_cast<int>(j);
      }
    }
  }
  std::vector<int> cuts(chunks, 0);
  for (size_t p = chunks, k = n; p > 0; --p) {
    cuts[p - 1] = static_cast<int>(k) - from[p][k];
    k = static_cast<size_t>(from[p][k]);
  }
  return cuts;
}

const CostModel::Cuts& CostModel::balanced(const Layout& l) {
  auto [at, fresh] = cuts_.try_emplace({time_key(group_of_stage(l, 0), l), l.pipeline, l.interleave, l.stages});
  if (fresh) at->second = weigh(l, cut_by_time(l));
  return at->second;
}

CostModel::Cuts CostModel::weigh(const Layout& l, std::vector<int> chunks) {
  const UnitSums seconds = seconds_before(l);
  std::vector<double> stages(seconds.run.size(), 0);
  size_t at = 0;
  for (size_t c = 0; c < chunks.size(); ++c) {
    const size_t end = at + static_cast<size_t>(chunks[c]);
    stages[c % stages.size()] += seconds.between(c % stages.size(), at, end);
    at = end;
  }
  Cuts out{std::move(chunks), 0, 0};
  for (double t : stages) out.slowest = std::max(out.slowest, t), out.sum += t;
  return out;
}

// The slowest stage works all the time, and others before and after it, as closed_form has it. Gradients of weights
// that are put off fill what they wait.
double CostModel::bound(const Layout& l, const Cuts& cuts) {
  // Those that take turns go through the stages as one.
  const double micro = static_cast<double>(micro_batches(problem_, l)), turns = static_cast<double>(overlapped(l));
  const double each = micro / std::ceil(micro / turns);
  const double bubble = l.schedule == PipelineSchedule::kZeroBubble ? 0 : each * (cuts.sum - cuts.slowest);
  return least_in_turns(l) * (micro * cuts.slowest + bubble / static_cast<double>(l.interleave));
}

std::vector<StageUnits> CostModel::chunk_units(const Layout& l) const {
  const Workload& w = *problem_.workload;
  const std::vector<int>& cuts = l.cuts.empty() ? even_cuts(l) : l.cuts;
  std::vector<StageUnits> out(cuts.size());
  const bool alike = l.recompute_blocks.empty();
  size_t at = 0;
  for (size_t p = 0; p < cuts.size(); ++p) {
    out[p].counts.assign(w.kinds.size(), 0);
    if (!alike) out[p].recomputed.assign(w.kinds.size(), {});
    for (int k = 0; k < cuts[p] && at < w.units.size(); ++k, ++at) {
      const size_t kind = static_cast<size_t>(w.units[at]);
      ++out[p].counts[kind];
      if (const int64_t block = block_numbers_[at]; !alike && block >= 0)
        ++out[p].recomputed[kind][static_cast<size_t>(l.recompute_of(static_cast<size_t>(block)))];
    }
    out[p].units = cuts[p], out[p].first = p == 0;
  }
  return out;
}

}  // namespace partita
