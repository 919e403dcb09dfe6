// What passes wait for of ZeRO's gathers and scatters, and a step's end of the sums of gradients: what compute beside
// them does not hide. Programs compiled here start each as early as it can be, one after the other in one order, which
// is replayed unit by unit (communication_lane.h):
//
//   gather 1 | gather 2 | gather 3 |         waited for: gather 1, and what gathers take beyond the units' compute
//            | unit 1   ···| unit 2  ···| unit 3
//
// Published software is priced by the shares that were fitted to it.
#include <algorithm>
#include <cmath>
#include <utility>

#include "partitioner/planner/cost/communication_lane.h"
#include "partitioner/planner/cost/cost_model.h"

namespace partita {
namespace {

constexpr double kMostBuckets = 4096;  // of a pass, that are replayed
// What units wait for at once.
constexpr TimeKind kSumsWithin[] = {TimeKind::kTensor, TimeKind::kContext, TimeKind::kExpert, TimeKind::kStatistics};
constexpr double kMemoryOfAByte = 7;        // bytes read and written, of one that a host sends: two copies, and a sum
constexpr double kWorthPrefetching = 1e-3;  // of the step, that gathers further ahead save

// Collectives that start as soon as those before have ended: all of `compute` may run beside them.
double waited_in_all(double moved, double compute, double edge) {
  return std::min(moved, std::max(edge, moved - compute));
}

}  // namespace

// What moves bytes takes the cores of a host that computes: each goes into the kernel and out of it on both sides, and
// is added. Over a slow wire most of the time is the wire's.
double CostModel::share_beside(const DeviceGroup& group) {
  if (group.device.host_update_rate > 0) return 1;
  if (group.links.empty()) return 0;
  const LinkProfile& wire = group.links.back().link;
  return std::max(0., 1 - kMemoryOfAByte * wire.bandwidth * wire.efficiency / group.device.bandwidth);
}

double CostModel::hiding_share(const DeviceGroup& group, const PassTimes& pass) {
  // Sums within a unit stand in the same order, behind what goes ahead: what runs before the first of its two hides.
  return share_beside(group) * (sums_within(pass) > 0 ? 0.5 : 1);
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
                              const StageUnits& units, size_t first, const std::vector<double>& received,
                              ChunkTimes& times) const {
  if (!gathers_parameters(l) && overlapped(l) == 1) return;
  if (problem_.own_programs) {
    add_lane_waits(l, group, costs, units, first, received, times);
  } else {
    add_published_waits(l, group, costs, units, times);
  }
}

double CostModel::slowdown(const DeviceGroup& group) const {
  return problem_.own_programs ? group.device.interference : group.device.software.overlap_slowdown;
}

// What travels takes as many processors and as much memory as bytes a second: over slower links it slows compute as it
// would in the shorter time that the innermost takes. Compute that would wait for the rest anyway may as well take
// longer.
double CostModel::slowed(const DeviceGroup& group, double beside, double waited, int64_t ranks) const {
  if (!problem_.own_programs) return slowdown(group) * beside;
  double rate = 1, inside = 1;  // of a ring, beside the innermost links'; ranks that share what leaves them
  for (const LinkLevel& level : group.links) {
    const LinkProfile &link = level.link, &inner = group.links.front().link;
    rate = std::min(rate, inside * link.bandwidth * link.efficiency / (inner.bandwidth * inner.efficiency));
    if (level.group >= ranks) break;
    inside = static_cast<double>(level.group);
  }
  return std::max(0., slowdown(group) * rate * beside - std::max(0., waited));
}

void CostModel::add_wait(PassTimes& pass, const DeviceGroup& group, double moved, double waited, double slowing,
                         double edge, int64_t ranks) const {
  pass[TimeKind::kGathers] += waited, pass.hidden_gathers += moved - waited;
  pass[TimeKind::kSlowed] += slowed(group, slowing, waited - edge, ranks);
}

double CostModel::sums_within(const PassTimes& pass) {
  double sum = 0;
  for (TimeKind kind : kSumsWithin) sum += pass[kind];
  return sum;
}

void CostModel::hide_sums(PassTimes& pass, const DeviceGroup& group, double share) const {
  const double hidden = share * sums_within(pass);
  for (TimeKind kind : kSumsWithin) pass[kind] *= 1 - share;
  pass.hidden_sums += hidden;
  pass[TimeKind::kSlowed] += slowed(group, hidden, sums_within(pass), 1);
}

void CostModel::add_published_waits(const Layout& l, const DeviceGroup& group, const std::vector<UnitCost>& costs,
                                    const StageUnits& units, ChunkTimes& times) const {
  const SoftwareProfile& software = group.device.software;
  const double m = static_cast<double>(micro_batches(problem_, l));
  const bool each = gathers_each_pass(l), scatters = scatters_each_pass(l);
  for (size_t k = 0; k < costs.size(); ++k) {
    const double n = units.counts[k];
    if (n == 0) continue;
    const UnitCost& c = costs[k];
    const auto [gather, scatter] = unit_exchange(c, group, l);
    const double computed = c.input_gradient + c.weight_gradient + again_on(units, k, c, l).compute / n;
    auto add = [&](PassTimes& pass, double moved, double beside, double slowing) {
      const double waited = moved - std::min(moved, beside) * software.overlap_gather;
      add_wait(pass, group, n * moved, n * waited, n * std::min(beside, slowing), 0, 1);
    };
    add(times.forward, each ? gather : gather / m, c.forward, each ? gather : 0);
    add(times.backward, (each ? gather : 0) + (scatters ? scatter : 0), computed, scatter);
  }
}

// A unit's passes, with the blocks' modes of recomputation as they come.
std::pair<LaneUnit, LaneUnit> CostModel::lane_units(const UnitCost& c, const UnitWork& work, RecomputeMode mode,
                                                    const DeviceGroup& group, const Layout& l) const {
  const UnitCost::Again again = CostModel::again(c, work.is_block() ? mode : RecomputeMode::kNone);
  const double statistics = static_cast<double>(work.batch_reduces.size());
  auto count = [&](const std::vector<CollectiveUse>& list) {
    double sum = statistics;
    for (const CollectiveUse& use : list) sum += use.times;
    return std::llround(sum);
  };
  double batch = 0;
  for (double e : work.batch_reduces)
    batch +=
        collective_time(group, CollectiveKind::kAllReduce, {l.data * l.expert, l.tensor * l.context}, e * sizeof(float))
            .seconds;
  LaneUnit forward, backward;
  forward.compute = c.forward;
  forward.sums = count(c.forward_collectives);
  forward.sum_seconds = c.tensor_forward + c.context_forward + c.expert + batch;
  backward.compute = c.input_gradient + c.weight_gradient + again.compute;
  backward.sums = count(c.backward_collectives);
  backward.sum_seconds = c.tensor_backward + again.tensor * c.tensor_forward + c.context_backward +
                         again.context * c.context_forward + (1 + again.expert) * c.expert + batch;
  if (again.tensor + again.context + again.expert > 0) backward.sums += count(c.forward_collectives);
  return {forward, backward};
}

std::vector<double> CostModel::kept_shares(const Layout& l, const std::vector<UnitCost>& costs, size_t first,
                                           size_t units) const {
  std::vector<double> shares(units, 0);
  const bool keeps = problem_.own_programs && gathers_each_pass(l) && l.pipeline == 1;
  if (!keeps || l.offload == OffloadMode::kAll) return shares;
  auto bytes = [&](size_t u) {
    const UnitCost& c = costs[static_cast<size_t>(problem_.workload->units[first + u])];
    return c.gather_bytes + c.frozen_bytes;
  };
  double room = 0;
  for (size_t u = 0; u < units; ++u) room = std::max(room, bytes(u));
  room *= static_cast<double>(1 + l.prefetched());
  for (size_t u = units; u-- > 0 && room > 0; room -= bytes(u))
    shares[u] = bytes(u) > 0 ? std::min(1.0, room / bytes(u)) : 1;
  return shares;
}

void CostModel::add_lane_waits(const Layout& l, const DeviceGroup& group, const std::vector<UnitCost>& costs,
                               const StageUnits& units, size_t first, const std::vector<double>& received,
                               ChunkTimes& times) const {
  const Workload& w = *problem_.workload;
  const bool each = gathers_each_pass(l), scatters = scatters_each_pass(l);
  // Copies from the host are not started ahead.
  const double share = hiding_share(group, times.forward), beside_share = share_beside(group);
  const bool hides = share > 0 && l.offload != OffloadMode::kAll;
  UnitCost all;
  for (size_t k = 0; k < costs.size(); ++k) all.gather_bytes += units.counts[k] * costs[k].gather_bytes;
  for (size_t u = first; u < first + static_cast<size_t>(units.units); ++u) all.gather_bytes += received[u];
  const std::vector<CollectiveUse> scattered = gather_collectives(all, l).scatter;
  const int64_t in_turns = overlapped(l);
  LanePass forward{.prefetched = l.prefetched(), .overlapped = in_turns}, backward = forward;
  if (scatters && all.gather_bytes > 0) {
    backward.bucket_bytes =
        std::max(static_cast<double>(l.buckets.bytes(scattered[0].axis.size)), all.gather_bytes / kMostBuckets);
    backward.scatter_rate = sum_seconds(group, l, scattered, 0).all / all.gather_bytes;
  }
  double gathers = 0, back = 0, edge = 0;  // seconds that they take; edge: the first
  double computed = 0, computed_back = 0;
  std::vector<double> gather_of(costs.size(), -1);
  std::vector<std::optional<std::pair<LaneUnit, LaneUnit>>> passes(costs.size() * kRecomputeModes);  // by kind and mode
  forward.units.reserve(static_cast<size_t>(units.units)), backward.units.reserve(static_cast<size_t>(units.units));
  const std::vector<double> kept = kept_shares(l, costs, first, static_cast<size_t>(units.units));
  for (size_t u = first; u < first + static_cast<size_t>(units.units); ++u) {
    const size_t kind = static_cast<size_t>(w.units[u]);
    const UnitCost& c = costs[kind];
    double& of_kind = gather_of[kind];
    if (of_kind < 0) of_kind = gathers_parameters(l) ? unit_exchange(c, group, l).gather : 0;
    double gather = of_kind;
    if (received[u] > 0 && gathers_parameters(l)) {
      UnitCost other;
      other.gather_bytes = received[u];
      gather += unit_exchange(other, group, l).gather;
    }
    const int64_t block = block_numbers_[u];
    const RecomputeMode mode = block < 0 ? RecomputeMode::kNone : l.recompute_of(static_cast<size_t>(block));
    auto& of_both = passes[kind * kRecomputeModes + static_cast<size_t>(mode)];
    if (!of_both) of_both = lane_units(c, w.kinds[kind], mode, group, l);
    auto [there, again] = *of_both;
    if (each) {
      there.gather = gather, again.gather = gather * (1 - kept[u - first]);
      there.gathered_bytes = again.gathered_bytes = c.gather_bytes + received[u] + c.frozen_bytes;
    }
    if (scatters) again.scattered_bytes = c.gather_bytes + received[u];
    if (u == first) edge = gather;
    gathers += gather, back += again.gather + again.scattered_bytes * backward.scatter_rate;
    computed += there.compute, computed_back += again.compute;
    forward.units.push_back(there), backward.units.push_back(again);
  }
  std::reverse(backward.units.begin(), backward.units.end());
  // What gathers and scatters leave to wait for. With others that take turns a micro-batch waits less for sums as well.
  auto waited = [&](const LanePass& pass, double moved, double compute, PassTimes& times_of) {
    const double sums = sums_within(times_of), all_moved = in_turns > 1 ? moved + sums : moved,
                 beside = in_turns > 1 ? compute : compute + sums;
    const double took = hides ? lane_seconds(pass) / static_cast<double>(in_turns) : 0;
    const double all_hidden = hides ? beside_share * (all_moved - std::clamp(took - beside, 0.0, all_moved)) : 0;
    const double all_waited = all_moved - all_hidden;
    if (in_turns == 1 || all_moved == 0) return all_waited;
    hide_sums(times_of, group, 1 - all_waited / all_moved);
    return moved * all_waited / all_moved;
  };
  double waited_forward = 0;
  if (each) {
    waited_forward = waited(forward, gathers, computed, times.forward);
  } else {
    if (in_turns > 1) waited(forward, 0, computed, times.forward);
    // Before the first of several micro-batches all of them stand ahead of the sums within its units.
    const double m = static_cast<double>(micro_batches(problem_, l));
    const bool behind = m > 1 && sums_within(times.forward) > 0;
    const double compute = hides && !behind ? share * times.forward[TimeKind::kCompute] : 0;
    waited_forward = waited_in_all(gathers, compute, edge) / m;
    gathers /= m;
  }
  const double waited_back = waited(backward, back, computed_back, times.backward);
  const int64_t reach = shard_ranks(l).size * shard_ranks(l).stride;
  const double before = each ? edge : edge / static_cast<double>(micro_batches(problem_, l));
  add_wait(times.forward, group, gathers, waited_forward, gathers - waited_forward, before, reach);
  add_wait(times.backward, group, back, waited_back, back - waited_back, before, reach);
}

std::vector<Layout> CostModel::prefetching_further(const Layout& l) {
  std::vector<Layout> out;
  if (!problem_.own_programs || !gathers_each_pass(l) || l.offload == OffloadMode::kAll) return out;
  const Prediction as_is = predict(l, false);
  double best = as_is.step_seconds;
  const double worth = kWorthPrefetching * best;
  if (as_is.breakdown.gathers < worth) return out;
  const int64_t units = static_cast<int64_t>(problem_.workload->units.size());
  for (int64_t n = l.prefetched() + 1, tries = 0; n <= units && tries < 3; n += std::max<int64_t>(1, n / 4), ++tries) {
    Layout further = l;
    further.prefetch_blocks = n;
    const double seconds = predict(further, false).step_seconds;
    if (seconds > best - worth) continue;
    best = seconds, tries = -1;
    out.push_back(std::move(further));
  }
  return out;
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
  const auto [moved, last] = sum_seconds(group, l, sums, sum_message(software, l));
  double backward = 0, compute = 0;
  // Beside the last of several micro-batches, whose terms complete them.
  for (const ChunkTimes& c : chunks) {
    backward += c.backward.total();
    const PassTimes& pass = c.weight.total() > 0 ? c.weight : c.backward;
    compute += hiding_share(group, pass) * (pass[kCompute] + pass[kRecompute]);
  }
  if (!problem_.own_programs) return moved - (l.pipeline == 1 ? std::min(moved, backward) * software.overlap_data : 0);
  return waited_in_all(moved, compute, last);
}

}  // namespace partita
