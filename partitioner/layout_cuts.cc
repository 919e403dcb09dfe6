// Where a layout's stages begin: blocks evenly, or balanced by the time that units take on each stage's devices, also
// among cuts whose stages fit.
#include <algorithm>

#include "partitioner/schedule_time.h"

namespace partita {

// Blocks evenly, the first chunks one more where they do not divide; what stands before the first block goes to the
// first chunk, what follows the last to the last.
std::vector<int> CostModel::even_cuts(const Layout& l) const {
  const Workload& w = *problem_.workload;
  int64_t parts = l.pipeline * l.interleave, blocks = 0;
  for (size_t k = 0; k < w.units.size(); ++k) blocks += w.unit(k).is_block();
  std::vector<int> cuts(static_cast<size_t>(parts), 0);
  size_t at = 0;
  for (int64_t p = 0; p < parts; ++p) {
    // The last chunks get the smaller shares: the loss is there.
    int64_t want = blocks / parts + (p < blocks % parts ? 1 : 0);
    while (at < w.units.size() && (want > 0 || !w.unit(at).is_block() || p + 1 == parts)) {
      if (w.unit(at).is_block() && want-- == 0) break;
      ++cuts[static_cast<size_t>(p)], ++at;
    }
  }
  return cuts;
}

double CostModel::seconds(const UnitCost& c, const Layout& l) {
  const double again = c.recompute > 0 && l.recompute == RecomputeMode::kFull ? 1 : 0;
  return c.forward + c.input_gradient + c.weight_gradient + c.recompute + c.tensor_forward * (1 + again) +
         c.tensor_backward + c.context_forward * (1 + again) + c.context_backward + c.expert * (2 + again);
}

double CostModel::heaviest_seconds(const DeviceGroup& group, const Layout& l) {
  const Workload& w = *problem_.workload;
  const auto& costs = unit_costs(group, l);
  std::vector<double> sum(costs.size(), 0);
  for (int k : w.units) sum[static_cast<size_t>(k)] += seconds(costs[static_cast<size_t>(k)], l);
  return *std::max_element(sum.begin(), sum.end());
}

std::vector<std::vector<double>> CostModel::seconds_before(const Layout& l) {
  const Workload& w = *problem_.workload;
  std::vector<std::vector<double>> sum(static_cast<size_t>(l.pipeline));
  const StageLayouts layouts(l);
  for (int64_t s = 0; s < l.pipeline; ++s) {
    const Layout& own = layouts[static_cast<size_t>(s)];
    const auto& costs = unit_costs(group_of_stage(l, s), own);
    std::vector<double> each;
    for (const UnitCost& c : costs) each.push_back(seconds(c, own));
    auto& prefix = sum[static_cast<size_t>(s)];
    prefix.push_back(0);
    for (int k : w.units) prefix.push_back(prefix.back() + each[static_cast<size_t>(k)]);
  }
  return sum;
}

// More units never need less memory, so the end moves on with the beginning.
std::vector<std::vector<int>> CostModel::ends_that_fit(const Layout& l) {
  const Workload& w = *problem_.workload;
  const size_t n = w.units.size();
  const StageLayouts layouts(l);
  std::vector<std::vector<int>> ends;
  for (int64_t s = 0; s < l.pipeline; ++s) {
    const DeviceProfile& device = group_of_stage(l, s).device;
    const double held = in_flight(problem_, l, s);
    StageUnits units{std::vector<int>(w.kinds.size(), 0), 0};
    auto add = [&](size_t unit, int by) { units.counts[static_cast<size_t>(w.units[unit])] += by, units.units += by; };
    auto& end = ends.emplace_back(n);
    for (size_t begin = 0, next = 0; begin < n; ++begin) {
      for (; next < n; ++next) {
        add(next, 1);
        if (stage_memory(problem_, device, layouts[static_cast<size_t>(s)], units, held).total() <= device.memory_bytes)
          continue;
        add(next, -1);
        break;
      }
      end[begin] = static_cast<int>(next);
      if (next > begin) {
        add(begin, -1);
      } else {
        ++next;
      }
    }
  }
  return ends;
}

// best[p][k]: the smallest possible time of the slowest of p chunks over the first k units.
std::vector<int> CostModel::cut_by_time(const Layout& l, const std::vector<std::vector<int>>* ends) {
  const Workload& w = *problem_.workload;
  size_t n = w.units.size(), stages = static_cast<size_t>(l.pipeline),
         parts = stages * static_cast<size_t>(l.interleave);
  if (parts > n || parts * n * n > size_t{40000000}) return even_cuts(l);
  const std::vector<std::vector<double>> sum = seconds_before(l);
  constexpr double kInfinite = 1e300;
  std::vector<std::vector<double>> best(parts + 1, std::vector<double>(n + 1, kInfinite));
  std::vector<std::vector<int>> from(parts + 1, std::vector<int>(n + 1, 0));
  best[0][0] = 0;
  for (size_t p = 1; p <= parts; ++p) {
    const size_t stage = (p - 1) % stages;
    const auto& prefix = sum[stage];
    for (size_t k = p; k + (parts - p) <= n; ++k) {
      for (size_t j = k; j-- > p - 1;) {
        double last = prefix[k] - prefix[j];
        if (last >= best[p][k] || (ends && static_cast<size_t>((*ends)[stage][j]) < k)) break;
        double value = std::max(best[p - 1][j], last);
        if (value < best[p][k]) best[p][k] = value, from[p][k] = static_cast<int>(j);
      }
    }
  }
  if (best[parts][n] >= kInfinite) return {};
  std::vector<int> cuts(parts, 0);
  for (size_t p = parts, k = n; p > 0; --p) {
    cuts[p - 1] = static_cast<int>(k) - from[p][k];
    k = static_cast<size_t>(from[p][k]);
  }
  return cuts;
}

std::vector<int> CostModel::balanced_cuts(const Layout& l) {
  if (!l.stages.empty()) return cut_by_time(l, nullptr);  // each of them is asked for a few times
  auto [at, fresh] = cuts_.try_emplace({time_key(group_of_stage(l, 0), l), l.pipeline, l.interleave});
  if (fresh) at->second = cut_by_time(l, nullptr);
  return at->second;
}

std::vector<int> CostModel::fitting_cuts(const Layout& l) {
  const std::vector<std::vector<int>> ends = ends_that_fit(l);
  // As much as fits on each stage in turn: where that does not reach the end, nothing does.
  int at = 0, n = static_cast<int>(problem_.workload->units.size());
  for (const std::vector<int>& end : ends) at = at < n ? end[static_cast<size_t>(at)] : n;
  if (at < n) return {};
  return cut_by_time(l, &ends);
}

double CostModel::slowest_stage(const Layout& l, const std::vector<int>& cuts) {
  const std::vector<std::vector<double>> sum = seconds_before(l);
  double slowest = 0;
  for (size_t s = 0, at = 0; s < cuts.size(); ++s) {
    const size_t end = at + static_cast<size_t>(cuts[s]);
    slowest = std::max(slowest, sum[s][end] - sum[s][at]);
    at = end;
  }
  return slowest;
}

std::vector<StageUnits> CostModel::chunk_units(const Layout& l) {
  const Workload& w = *problem_.workload;
  std::vector<int> cuts = l.cuts.empty() ? even_cuts(l) : l.cuts;
  std::vector<StageUnits> out(cuts.size());
  size_t at = 0;
  for (size_t p = 0; p < cuts.size(); ++p) {
    out[p].counts.assign(w.kinds.size(), 0);
    for (int k = 0; k < cuts[p] && at < w.units.size(); ++k, ++at) ++out[p].counts[static_cast<size_t>(w.units[at])];
    out[p].units = cuts[p];
  }
  return out;
}

}  // namespace partita
