// What passes wait for of ZeRO's gathers and scatters, and a step's end of the sums of gradients: what compute beside
// them does not hide. Programs compiled here start each as early as it can be, one after the other in one order:
//
//   gather 1 | gather 2 | gather 3 |         waited for: gather 1, and what gathers take beyond the units' compute
//            | unit 1   ···| unit 2  ···| unit 3
//
// Published software is priced by the shares that were fitted to it.
#include <algorithm>

#include "partitioner/planner/cost/cost_model.h"

namespace partita {
namespace {

// Collectives beside units, or buckets of them, that are computed with one after the other.
struct Beside {
  double moved = 0;  // seconds of the collectives
  double over = 0;   // of those, what is waited for where each has the compute of one unit beside it
  double edge = 0;   // the first, which is waited for before anything is computed, or the last

  void add(double units, double each, double compute) {
    moved += units * each, over += units * std::max(0.0, each - compute);
  }
  double waited() const { return std::min(moved, over + edge); }
};

// Collectives that start as soon as those before have ended: all of `compute` may run beside them.
double waited_in_all(double moved, double compute, double edge) {
  return std::min(moved, std::max(edge, moved - compute));
}

}  // namespace

double CostModel::hiding_share(const DeviceGroup& group, const PassTimes& pass) {
  using enum TimeKind;
  if (group.device.host_update_rate == 0) return 0;  // it is the host: what moves bytes takes the cores that compute
  // Sums within a unit stand in the same order, behind what goes ahead: what runs before the first of its two hides.
  const bool others = pass[kTensor] + pass[kContext] + pass[kExpert] + pass[kStatistics] > 0;
  return others ? 0.5 : 1;
}

CostModel::UnitExchange CostModel::unit_exchange(const UnitCost& unit, const DeviceGroup& group,
                                                 const Layout& l) const {
  const GatherCollectives exchanged = gather_collectives(unit, l);
  const double message = group.device.software.gather_message_bytes;
  UnitExchange out;
  for (const CollectiveUse& use : exchanged.gather) out.gather += message_seconds(group, use, l, message);
  for (const CollectiveUse& use : exchanged.scatter) out.scatter += message_seconds(group, use, l, message);
  if (l.offload == OffloadMode::kAll)
    out.gather += (unit.gather_bytes + unit.frozen_bytes) / group.device.host_bandwidth;
  return out;
}

void CostModel::add_exchanges(const Layout& l, const DeviceGroup& group, const std::vector<UnitCost>& costs,
                              const StageUnits& units, UnitEnds ends, ChunkTimes& times) const {
  using enum TimeKind;
  if (!gathers_parameters(l)) return;
  const SoftwareProfile& software = group.device.software;
  const double m = static_cast<double>(micro_batches(problem_, l));
  const bool each = gathers_each_pass(l), scatters = scatters_each_pass(l);
  auto wait = [&](PassTimes& pass, double moved, double waited, double slowing) {
    pass[kGathers] += waited, pass.hidden_gathers += moved - waited;
    pass[kSlowed] += software.overlap_slowdown * slowing;
  };
  auto& [forward, backward, weight] = times;
  // Copies from the host are not started ahead.
  const bool ahead = problem_.own_programs && l.offload != OffloadMode::kAll;
  const double forward_share = hiding_share(group, forward), backward_share = hiding_share(group, backward);
  Beside gathers, back;
  SumSeconds sums;  // of our programs' scatters, which go in buckets over several units
  UnitCost all;
  for (size_t k = 0; k < costs.size(); ++k) all.gather_bytes += units.counts[k] * costs[k].gather_bytes;
  if (problem_.own_programs && scatters) sums = sum_seconds(group, l, gather_collectives(all, l).scatter, 0);
  for (size_t k = 0; k < costs.size(); ++k) {
    const double n = units.counts[k];
    if (n == 0) continue;
    const UnitCost& c = costs[k];
    auto [gather, scatter] = unit_exchange(c, group, l);
    if (problem_.own_programs) scatter = sums.all * c.gather_bytes / std::max(all.gather_bytes, 1.0);
    const double computed = c.input_gradient + c.weight_gradient + again_on(units, k, c, l).compute / n;
    const double moved_back = (each ? gather : 0) + (scatters ? scatter : 0);
    gathers.add(n, gather, ahead ? forward_share * c.forward : 0);
    back.add(n, moved_back, ahead ? backward_share * computed : 0);
    if (static_cast<int>(k) == ends.first) gathers.edge = gather;
    if (static_cast<int>(k) == ends.last) back.edge = sums.last + (each ? gather : 0);
    if (problem_.own_programs) continue;
    auto add = [&](PassTimes& pass, double moved, double beside, double slowing) {
      const double waited = moved - std::min(moved, beside) * software.overlap_gather;
      wait(pass, n * moved, n * waited, n * std::min(beside, slowing));
    };
    add(forward, each ? gather : gather / m, c.forward, each ? gather : 0);
    add(backward, moved_back, computed, scatter);
  }
  if (!problem_.own_programs) return;
  double waited = gathers.waited();
  if (!each) {
    // Before the first of several micro-batches all of them stand ahead of the sums within its units.
    const bool behind = m > 1 && forward_share < 1;
    const double compute = ahead && !behind ? forward_share * forward[kCompute] : 0;
    waited = waited_in_all(gathers.moved, compute, gathers.edge);
    gathers.moved /= m, waited /= m;
  }
  wait(forward, gathers.moved, waited, gathers.moved - waited);
  wait(backward, back.moved, back.waited(), back.moved - back.waited());
}

CostModel::SumSeconds CostModel::sum_seconds(const DeviceGroup& group, const Layout& l,
                                             const std::vector<CollectiveUse>& sums, double message) const {
  SumSeconds out;
  for (const CollectiveUse& use : sums) {
    CollectiveUse bucket = use;
    bucket.bytes = std::min(use.bytes, static_cast<double>(l.buckets.bytes(use.axis.size)));
    out.all += message_seconds(group, use, l, message), out.last += message_seconds(group, bucket, l, message);
  }
  return out;
}

double CostModel::waited_sums(const Layout& l, const DeviceGroup& group, const std::vector<CollectiveUse>& sums,
                              const std::vector<ChunkTimes>& chunks) const {
  using enum TimeKind;
  const SoftwareProfile& software = group.device.software;
  const auto [moved, last] = sum_seconds(group, l, sums, l.zero == 1 ? software.shard_message_bytes : 0);
  double backward = 0, compute = 0;
  // Beside the last of several micro-batches, whose terms complete them.
  for (const ChunkTimes& c : chunks) {
    backward += c.backward.total();
    const PassTimes& pass = c.weight.total() > 0 ? c.weight : c.backward;
    compute += hiding_share(group, pass) * (pass[kCompute] + pass[kRecompute]);
  }
  if (!problem_.own_programs) return moved - std::min(moved, backward) * software.overlap_data;
  return waited_in_all(moved, compute, last);
}

}  // namespace partita
