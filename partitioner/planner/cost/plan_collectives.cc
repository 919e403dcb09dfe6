// Which collectives a layout's ranks run, with their bytes: what cost_model.cc prices and traffic.cc shows.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>
#include <utility>

#include "partitioner/planner/cost/cost_model.h"

namespace partita {
namespace {

constexpr double kWorthLevels = 0.98;  // of the seconds that are spent without levels

// Whether groups of any such size fit the ranks that share a run of the graph.
bool is_power_of_two(int64_t n) { return (n & (n - 1)) == 0; }

// Bytes of a gradient's element on the wire, where it has `plain` in memory.
double travelling_bytes(Compression kind, double plain) {
  if (kind == Compression::kNone) return plain;
  return std::min(plain, kind == Compression::kBf16 ? 2. : 1.);
}

// All ranks of a stage that have samples or positions of their own.
RankAxis sample_ranks(const Layout& l) { return {l.data * l.expert * l.context, l.tensor}; }

// Those that share an expert's weights. (They are priced as if they followed each other.)
CollectiveUse among_experts(CollectiveKind kind, const Layout& l, double bytes) {
  CollectiveUse use{TrafficKind::kData, kind, {l.data * l.context, l.tensor * l.expert}, bytes};
  if (l.context > 1) use.members = {RankAxis{l.context, l.tensor}, RankAxis{l.data, l.tensor * l.context * l.expert}};
  return use;
}

}  // namespace

std::pair<std::vector<CollectiveUse>, std::vector<CollectiveUse>> CostModel::unit_collectives(const UnitWork& u,
                                                                                              const Layout& l) const {
  using enum CollectiveKind;
  std::vector<CollectiveUse> forward, backward;
  const Workload& w = *problem_.workload;
  const double element = problem_.options.element_bytes();
  const double positions = static_cast<double>(l.micro_batch) / (w.sequence > 1 ? static_cast<double>(l.context) : 1);
  auto sums = [&](const std::vector<double>& list, std::vector<CollectiveUse>& to) {
    for (double e : list) {
      const double bytes = e * positions * element;
      const RankAxis axis{l.tensor, 1};
      if (l.sequence_parallel && u.sequence) {
        to.push_back({TrafficKind::kTensor, kAllGather, axis, bytes});
        to.push_back({TrafficKind::kTensor, kReduceScatter, axis, bytes});
      } else {
        to.push_back({TrafficKind::kTensor, kAllReduce, axis, bytes});
      }
    }
  };
  if (l.tensor > 1) sums(u.forward_reduces, forward), sums(u.backward_reduces, backward);
  // What weight gradients read is gathered again in backward (regather_in_backward.h).
  if (l.tensor > 1 && problem_.own_programs && l.sequence_parallel && u.sequence) {
    for (double e : u.forward_reduces)
      backward.push_back({TrafficKind::kTensor, kAllGather, RankAxis{l.tensor, 1}, e * positions * element});
  }
  for (const AttentionWork& a : u.attention) {  // all of its heads on all ranks, which make parts of its operands
    if (l.tensor == 1 || !a.split || a.ranks(static_cast<double>(l.tensor)) > 1) continue;
    const double each = a.head_size * positions * element, queries = a.heads * a.queries * each;
    const RankAxis axis{l.tensor, 1};
    forward.push_back({TrafficKind::kTensor, kAllGather, axis, queries + 2 * a.key_heads * a.keys * each, a.count});
    backward.push_back({TrafficKind::kTensor, kAllGather, axis, queries, a.count});
  }
  if (l.context > 1) {
    const Share share = share_on_rank(l);
    const RankAxis axis{l.context, l.tensor};
    // Queries, keys and values are exchanged from positions to heads and the result back; their gradients likewise. Or
    // keys and values are gathered, and their gradients scattered; programs compiled here keep what they gathered.
    for (const AttentionWork& a : u.attention) {
      const double each = a.head_size * positions * element / (a.split ? share.tensor : 1);
      auto use = [&](CollectiveKind kind, double bytes, double times) {
        return CollectiveUse{TrafficKind::kContext, kind, axis, bytes, times};
      };
      if (!exchanges_heads(a, share)) {
        const double bytes = 2 * a.key_heads * a.keys * each * share.context;
        forward.push_back(use(kAllGather, bytes, a.count));
        if (!problem_.own_programs) backward.push_back(use(kAllGather, bytes, a.count));
        backward.push_back(use(kReduceScatter, bytes, a.count));
        continue;
      }
      for (std::vector<CollectiveUse>* pass : {&forward, &backward}) {
        pass->push_back(use(kAllToAll, a.heads * a.queries * each, 2 * a.count));
        pass->push_back(use(kAllToAll, a.key_heads * a.keys * each * keys_on_rank(a, share), 2 * a.count));
      }
    }
  }
  if (l.expert > 1 && u.expert_tokens > 0) {
    // Each rank of the axis gathers the tokens of all of them, and what its experts make is summed up by token.
    const double bytes = u.expert_tokens * positions * static_cast<double>(l.expert) * element;
    const RankAxis axis{l.expert, l.tensor * l.context};
    for (std::vector<CollectiveUse>* pass : {&forward, &backward}) {
      pass->push_back({TrafficKind::kExpert, kAllGather, axis, bytes});
      pass->push_back({TrafficKind::kExpert, kReduceScatter, axis, bytes});
    }
  }
  return {std::move(forward), std::move(backward)};
}

RankAxis CostModel::shard_ranks(const Layout& l) {
  RankAxis all = sample_ranks(l);
  if (l.zero == 0) all.size = 1;
  if (l.zero_group > 0) all.size = std::gcd(all.size, l.zero_group * l.context);
  return all;
}

bool CostModel::gathers_parameters(const Layout& l) const {
  return l.zero >= (problem_.own_programs ? 1 : 2) || l.offload == OffloadMode::kAll;
}

bool CostModel::scatters_each_pass(const Layout& l) { return l.zero >= 2 || l.offload == OffloadMode::kAll; }

bool CostModel::gathers_each_pass(const Layout& l) {
  return (l.zero >= 3 && l.reshard_after_forward) || l.offload == OffloadMode::kAll;
}

CostModel::GatherCollectives CostModel::gather_collectives(const UnitCost& unit, const Layout& l) const {
  const double scattered = unit.gather_bytes * travelling_bytes(problem_.compress, problem_.gradient_bytes()) /
                           problem_.options.element_bytes();
  const bool all = l.zero >= 3 || l.offload == OffloadMode::kAll;  // else frozen weights lie whole on the device
  const double gathered = unit.gather_bytes + (all ? unit.frozen_bytes : 0);
  return {in_levels({TrafficKind::kData, CollectiveKind::kAllGather, shard_ranks(l), gathered}, l),
          in_levels({TrafficKind::kData, CollectiveKind::kReduceScatter, shard_ranks(l), scattered}, l)};
}

CostModel::UpdateCollectives CostModel::update_collectives(const Layout& l, const StageUnits& units) const {
  using enum CollectiveKind;
  UpdateCollectives out;
  const double element = problem_.options.element_bytes(),
               bytes = travelling_bytes(problem_.compress, problem_.gradient_bytes());
  auto [dense, expert] = local_parameters(*problem_.workload, units, l);
  const RankAxis all = sample_ranks(l), shards = shard_ranks(l);
  // Software keeps a copy of tied weights on either stage.
  if (!problem_.own_programs) dense += tied_parameters(*problem_.workload, units, l);
  const RankAxis copies{all.size / shards.size, all.stride * shards.size};  // ranks with the same shard
  auto both = [&](CollectiveKind kind, double each, std::vector<CollectiveUse>& to) {
    to.push_back({TrafficKind::kData, kind, all, dense * each});
    to.push_back(among_experts(kind, l, expert * each));
  };
  const bool at_end = l.zero == 1 && !gathers_parameters(l);
  if (l.zero == 0) both(kAllReduce, bytes, out.reduce);
  if (l.zero >= 1 && copies.size > 1) {
    const double all_bytes = (dense + expert) * bytes;
    if (l.zero == 1) out.reduce.push_back({TrafficKind::kData, kReduceScatter, shards, all_bytes});
    out.reduce.push_back({TrafficKind::kData, kAllReduce, copies, all_bytes / static_cast<double>(shards.size)});
    if (at_end) out.gather.push_back({TrafficKind::kData, kAllGather, shards, (dense + expert) * element});
  } else if (l.zero == 1) {
    both(kReduceScatter, bytes, out.reduce);
    if (at_end) both(kAllGather, element, out.gather);
  }
  for (size_t k = 0; k < units.counts.size(); ++k) {
    const auto& [tensor, stored] = problem_.workload->kinds[k].update.moves;
    auto use = [&](const UpdateMoves& moves, TrafficKind kind, RankAxis axis) {
      for (const auto& [b, n] : moves.gathered)
        out.products.push_back({kind, kAllGather, axis, b, n * units.counts[k]});
      for (const auto& [b, n] : moves.summed) out.products.push_back({kind, kAllReduce, axis, b, n * units.counts[k]});
    };
    if (units.counts[k] > 0 && l.tensor > 1) use(tensor, TrafficKind::kTensor, {l.tensor, 1});
    if (units.counts[k] > 0 && l.zero >= 1 && shards.size > 1) use(stored, TrafficKind::kData, shards);
  }
  for (std::vector<CollectiveUse>* list : {&out.reduce, &out.gather}) {
    for (const CollectiveUse& use : std::exchange(*list, {})) {
      for (CollectiveUse& level : in_levels(use, l)) list->push_back(std::move(level));
    }
  }
  return out;
}

// Over the ranks of a hierarchical group, and over what each of them has with those of the other groups.
std::vector<CollectiveUse> CostModel::in_levels(const CollectiveUse& use, const Layout& l) {
  using enum CollectiveKind;
  const RankAxis all = use.axis;
  int64_t near = l.hierarchical_group * l.context;
  if (all.stride != l.tensor) near = all.stride == l.tensor * l.expert ? near / l.expert : 0;  // experts; copies
  if (near <= 1 || all.size <= near || all.size % near != 0) return {use};
  const RankAxis inside{near, all.stride}, across{all.size / near, all.stride * near};
  const double part = use.bytes / static_cast<double>(near);
  auto level = [&](CollectiveKind kind, RankAxis axis, double bytes) {
    return CollectiveUse{use.kind, kind, axis, bytes, use.times};
  };
  if (use.collective == kReduceScatter)
    return {level(kReduceScatter, inside, use.bytes), level(kReduceScatter, across, part)};
  if (use.collective == kAllGather) return {level(kAllGather, across, part), level(kAllGather, inside, use.bytes)};
  return {level(kReduceScatter, inside, use.bytes), level(kAllReduce, across, part),
          level(kAllGather, inside, use.bytes)};
}

// What a layout's stages exchange of gradients and parameters. A stage like the one before is not visited.
template <typename Visit>
void CostModel::visit_exchanges(const Layout& whole, Visit visit) {
  const std::vector<StageUnits> chunks = chunk_units(whole);
  const StageLayouts layouts(whole);
  std::tuple<const Layout*, const DeviceGroup*, std::vector<int>> before;
  for (int64_t stage = 0; stage < whole.pipeline; ++stage) {
    const Layout& l = layouts[static_cast<size_t>(stage)];
    const DeviceGroup& group = group_of_stage(whole, stage);
    const StageUnits units = units_of_stage(whole, chunks, stage);
    if (std::tuple now(&l, &group, units.counts); now == std::exchange(before, now)) continue;
    const UpdateCollectives update = update_collectives(l, units);
    for (const CollectiveUse& use : update.reduce) visit(group, l, use);
    for (const CollectiveUse& use : update.gather) visit(group, l, use);
    if (!gathers_parameters(l)) continue;
    const std::vector<UnitCost>& costs = unit_costs(group, l);
    UnitCost all;
    for (size_t k = 0; k < costs.size(); ++k) {
      all.gather_bytes += units.counts[k] * costs[k].gather_bytes;
      for (CollectiveUse& use : gather_collectives(costs[k], l).gather) {
        use.times = units.counts[k];  // each unit's by itself
        visit(group, l, use);
      }
    }
    if (!scatters_each_pass(l)) continue;
    for (const CollectiveUse& use : gather_collectives(all, l).scatter) visit(group, l, use);
  }
}

BucketSizes CostModel::bucket_sizes(const Layout& whole) {
  BucketSizes sizes;
  visit_exchanges(whole, [&](const DeviceGroup& group, const Layout&, const CollectiveUse& use) {
    if (use.axis.size <= 1 || use.bytes <= 0 || use.times <= 0) return;
    const double least = static_cast<double>(BucketSizes::kLeast);
    sizes.raise(use.axis.size, std::llround(best_message(group, use.collective, use.axis, use.bytes, least)));
  });
  return sizes;
}

double CostModel::exchange_seconds(const Layout& whole) {
  double seconds = 0;
  visit_exchanges(whole, [&](const DeviceGroup& group, const Layout& l, const CollectiveUse& use) {
    seconds += use.times * message_seconds(group, use, l, 0);
  });
  return seconds;
}

bool CostModel::may_group(const Layout& l) const {
  return problem_.own_programs && l.stages.empty() && !problem_.reproducible &&
         problem_.compress == Compression::kNone &&
         (problem_.workload->exported_batch <= 1 || is_power_of_two(l.sample_ranks()));
}

Layout CostModel::with_exchanges(Layout l) {
  if (!problem_.own_programs) return l;
  if (gathers_each_pass(l)) l.prefetch_blocks = l.prefetched();
  const bool sized = !l.buckets.sizes.empty();
  if (!sized) l.buckets = bucket_sizes(l);
  // In levels where that is faster. Groups end where nodes do.
  const DeviceGroup& group = group_of_stage(l, 0);
  const int64_t near =
      std::gcd(l.sample_ranks(), std::max<int64_t>(1, group.devices_per_node / (l.tensor * l.context)));
  const bool open = l.hierarchical_group == 0 && may_group(l);
  if (!open || near <= l.expert || near % l.expert != 0 || near == l.sample_ranks()) return l;
  Layout levels = l;
  levels.hierarchical_group = near;
  if (!sized) levels.buckets = bucket_sizes(levels);
  return exchange_seconds(levels) < kWorthLevels * exchange_seconds(l) ? levels : l;
}

// A rank of stage `to` gathers what ranks of `from` have of its samples and positions, one micro-batch's, of `bytes` a
// sample; where they are more or fewer, each part was sent to one of its ranks.
CollectiveUse CostModel::relayout_gather(const Layout& from, const Layout& to, double bytes) const {
  const Workload& w = *problem_.workload;
  auto shares = [&](const Layout& l) { return l.data * l.expert * (w.sequence > 1 ? l.context : 1); };
  auto ranks = [](const Layout& l) { return l.data * l.expert * l.context * l.tensor; };
  const int64_t ways = ranks(from) == ranks(to) ? shares(from) / shares(to) : ranks(to) / shares(to);
  bytes *= static_cast<double>(to.micro_batch);
  if (w.sequence > 1) bytes /= static_cast<double>(to.context);
  return {TrafficKind::kPipeline, CollectiveKind::kAllGather, {std::max<int64_t>(ways, 1), 1}, bytes};
}

PlanTraffic CostModel::traffic(const Layout& whole) {
  const Workload& w = *problem_.workload;
  const std::vector<StageUnits> chunks = chunk_units(whole);
  const double m = static_cast<double>(micro_batches(problem_, whole));
  PlanTraffic out;
  out.micro_batches = static_cast<int64_t>(m), out.chunks = whole.interleave;
  const std::vector<double> crossing = crossing_bytes(whole);
  out.boundary_bytes = *std::max_element(crossing.begin(), crossing.end()) *
                       static_cast<double>(whole.micro_batch * whole.data * whole.expert);
  out.shared = shared_parameters(whole);
  const std::vector<double> received = received_bytes(whole);
  std::vector<std::vector<CollectiveUse>> collectives(static_cast<size_t>(whole.pipeline));
  for (size_t p = 0, unit = 0; p < chunks.size(); unit += static_cast<size_t>(chunks[p++].units)) {
    const size_t stages = collectives.size(), stage = p % stages;
    const Layout l = whole.of_stage(static_cast<int64_t>(stage));
    auto add = [&](CollectiveUse use, double times) {
      use.times *= times;
      collectives[stage].push_back(std::move(use));
    };
    const auto& costs = unit_costs(group_of_stage(whole, static_cast<int64_t>(stage)), l);
    UnitCost from_others;
    for (size_t u = unit; u < unit + static_cast<size_t>(chunks[p].units); ++u) from_others.gather_bytes += received[u];
    if (gathers_parameters(l)) {
      const GatherCollectives exchanged = gather_collectives(from_others, l);
      for (const CollectiveUse& use : exchanged.gather) add(use, gathers_each_pass(l) ? 2 * m : 1);
      for (const CollectiveUse& use : exchanged.scatter) add(use, scatters_each_pass(l) ? m : 0);
    }
    std::vector<double> kept(costs.size(), 0);  // of each kind, that backward finds gathered
    const std::vector<double> shares = kept_shares(l, costs, unit, static_cast<size_t>(chunks[p].units));
    for (size_t u = 0; u < shares.size(); ++u) kept[static_cast<size_t>(w.units[unit + u])] += shares[u];
    for (size_t k = 0; k < costs.size(); ++k) {
      const UnitCost& c = costs[k];
      const double n = m * chunks[p].counts[k];
      const UnitCost::Again again = again_on(chunks[p], k, c, l);
      for (const CollectiveUse& use : c.forward_collectives) {
        const double repeated = use.kind == TrafficKind::kTensor    ? again.tensor
                                : use.kind == TrafficKind::kContext ? again.context
                                                                    : again.expert;
        add(use, n + m * repeated);
      }
      for (const CollectiveUse& use : c.backward_collectives) add(use, n);
      if (gathers_parameters(l)) {
        const GatherCollectives exchanged = gather_collectives(c, l);
        for (const CollectiveUse& use : exchanged.gather) add(use, gathers_each_pass(l) ? 2 * n - m * kept[k] : n / m);
        for (const CollectiveUse& use : exchanged.scatter) add(use, scatters_each_pass(l) ? n : 0);
      }
      for (double e : w.kinds[k].batch_reduces)
        add({TrafficKind::kData,
             CollectiveKind::kAllReduce,
             {l.data * l.expert, l.tensor * l.context},
             e * sizeof(float)},
            2 * n);
    }
    if (whole.stages.empty()) continue;
    auto before = [&](size_t part) { return whole.of_stage(static_cast<int64_t>(part % stages)); };
    if (p > 0) add(relayout_gather(before(p - 1), l, crossing[p - 1]), m);
    if (p + 1 < chunks.size()) add(relayout_gather(before(p + 1), l, crossing[p]), m);
  }
  for (int64_t stage = 0; stage < whole.pipeline; ++stage) {
    std::vector<CollectiveUse>& all = collectives[static_cast<size_t>(stage)];
    const UpdateCollectives update = update_collectives(whole.of_stage(stage), units_of_stage(whole, chunks, stage));
    for (const std::vector<CollectiveUse>* list : {&update.reduce, &update.gather, &update.products}) {
      for (CollectiveUse use : *list) {
        use.times *= whole.schedule == PipelineSchedule::kPipedream ? m : 1;
        all.push_back(std::move(use));
      }
    }
    out.stages.push_back({whole.ranks_of_stage(stage), transfers(group_of_stage(whole, stage), all)});
  }
  return out;
}

std::vector<double> CostModel::crossing_bytes(const Layout& l) const {
  const std::vector<int>& cuts = l.cuts.empty() ? even_cuts(l) : l.cuts;
  std::vector<double> out(cuts.size(), 0);
  if (l.pipeline == 1) return out;
  std::vector<size_t> chunk_of;  // of units
  for (size_t p = 0; p < cuts.size(); ++p) chunk_of.insert(chunk_of.end(), static_cast<size_t>(cuts[p]), p);
  for (const CrossingValue& v : problem_.workload->crossing) {
    const size_t maker = chunk_of[static_cast<size_t>(v.maker)], stages = static_cast<size_t>(l.pipeline);
    // Programs compiled here send what crosses as they have it: a residual stream that starts at an embedding is fp32.
    const double bytes = problem_.own_programs ? v.bytes : v.elements * problem_.options.element_bytes();
    size_t before = maker;
    for (int reader : v.readers) {
      const size_t chunk = chunk_of[static_cast<size_t>(reader)];
      if (chunk != before && chunk % stages != maker % stages) out[maker] += bytes;
      before = chunk;
    }
  }
  return out;
}

double CostModel::send_seconds(const Layout& l, int64_t stage, double bytes) const {
  const Workload& w = *problem_.workload;
  const int64_t next = stage + 1 < l.pipeline ? stage + 1 : 0, first = std::min(stage, next),
                last = std::max(stage, next);
  const int64_t apart = std::min(l.ranks_of_stage(stage), l.ranks_of_stage(next));
  bytes *= static_cast<double>(l.micro_batch);
  if (l.stages.empty()) {
    if (w.sequence > 1) bytes /= static_cast<double>(l.context);
    bytes /= static_cast<double>(l.tensor);  // each rank sends its part; the other side gathers it
  } else {                                   // a stage with fewer ranks sends and gets more on each
    bytes *= static_cast<double>(l.data * l.expert) / static_cast<double>(apart);
  }
  const DeviceGroup& group = group_of_ranks(l.first_rank(first), l.first_rank(last + 1) - 1);
  const bool within = &group == &group_of_stage(l, stage) && &group == &group_of_stage(l, next);
  // From one group to another all go over the link between them.
  return collective_time(group, CollectiveKind::kSend, {2, within ? apart : group.devices()}, bytes).seconds;
}

std::vector<double> CostModel::sends(const Layout& l, const std::vector<double>& crossing) const {
  const size_t stages = static_cast<size_t>(l.pipeline);
  std::vector<double> out(stages, 0), most(stages, 0);
  if (l.pipeline == 1) return out;
  for (size_t p = 0; p < crossing.size(); ++p) most[p % stages] = std::max(most[p % stages], crossing[p]);
  const bool alike = l.stages.empty() && problem_.cluster->groups.size() == 1;
  for (size_t s = 0; s < stages; ++s) {
    const bool last = s + 1 == stages && l.interleave == 1;  // which sends to none
    const bool known = s > 0 && (last || (alike && most[s] == most[s - 1]));
    out[s] = known ? out[s - 1] : send_seconds(l, static_cast<int64_t>(s), most[s]);
  }
  return out;
}

}  // namespace partita
