// Parameters that several stages of a program compiled here read, as a head that is tied to the embedding: the stage
// that reads them first has them. As a step begins it sends them to each of the others, as they are stored; after their
// last backward pass these send their sums of gradients back. Each rank exchanges its own with the rank of its place,
// all at once.
//
//   stage 0   f f                 b b |        | sums over data, update
//   stage 1   parameters  f b  f b    gradients
//
// Under ZeRO what is sent is a rank's part: of parameters, which the reader's ranks then gather, from ZeRO-1 on, of
// gradients, which they have scattered with each pass, from ZeRO-2 on. A gradient goes back with every micro-batch
// where stages have different numbers of ranks.
#include <algorithm>
#include <numeric>
#include <set>

#include "partitioner/planner/cost/cost_model.h"

namespace partita {
namespace {

constexpr double kStored = sizeof(float);  // bytes of an element, and of its gradient's sum

// Times a step that gradients are sent.
double times_sent(const Problem& problem, const Layout& l, int64_t owner, int64_t reader) {
  const bool each = l.ranks_of_stage(owner) != l.ranks_of_stage(reader);
  return each ? static_cast<double>(micro_batches(problem, l)) : 1;
}

}  // namespace

std::vector<CostModel::SharedUse> CostModel::shared_uses(const Layout& l) const {
  std::vector<SharedUse> out;
  const Workload& w = *problem_.workload;
  if (!problem_.own_programs || l.pipeline == 1 || w.shared.empty()) return out;
  std::vector<int> ends = l.cuts.empty() ? even_cuts(l) : l.cuts;  // of each chunk, in units
  std::partial_sum(ends.begin(), ends.end(), ends.begin());
  auto stage_of = [&](int unit) {
    return (std::upper_bound(ends.begin(), ends.end(), unit) - ends.begin()) % l.pipeline;
  };
  for (const SharedParameters& s : w.shared) {
    const int64_t owner = stage_of(s.units.front());
    std::set<int64_t> seen = {owner};
    for (int u : s.units) {
      const int64_t reader = stage_of(u);
      if (seen.insert(reader).second) out.push_back({owner, reader, static_cast<size_t>(u), s.elements});
    }
  }
  return out;
}

std::vector<double> CostModel::received_bytes(const Layout& l) const {
  std::vector<double> out(problem_.workload->units.size(), 0);
  for (const SharedUse& use : shared_uses(l))
    out[use.unit] += use.elements_on(l.of_stage(use.reader)) * problem_.options.element_bytes();
  return out;
}

std::vector<PlanTraffic::Shared> CostModel::shared_parameters(const Layout& whole) const {
  std::vector<PlanTraffic::Shared> out;
  for (const SharedUse& use : shared_uses(whole)) {
    const Layout owner = whole.of_stage(use.owner), reader = whole.of_stage(use.reader);
    // Of stages that differ each part goes once to each copy that both have.
    const int64_t tensor = std::min(owner.tensor, reader.tensor),
                  copies = std::min(whole.ranks_of_stage(use.owner) / owner.tensor,
                                    whole.ranks_of_stage(use.reader) / reader.tensor);
    const double bytes = kStored * static_cast<double>(copies) *
                         (use.elements[0] + use.elements[1] * static_cast<double>(tensor)),
                 part = bytes / static_cast<double>(shard_ranks(owner).size);
    auto at = std::find_if(out.begin(), out.end(),
                           [&](const auto& x) { return x.owner == use.owner && x.reader == use.reader; });
    if (at == out.end()) at = out.insert(out.end(), {use.owner, use.reader});
    at->parameters += whole.zero >= 1 ? part : bytes;
    at->gradients += (whole.zero >= 2 ? part : bytes) * times_sent(problem_, whole, use.owner, use.reader);
  }
  return out;
}

// The reader begins when the parameters have come, which travel while the stages before it pass on the first
// micro-batch. The owner updates when the gradients have come, which travel while the stages before the reader end the
// last backward pass; of a single micro-batch they leave as soon as they are made, ahead of what the reader passes
// back.
double CostModel::shared_seconds(const Layout& l, const Simulation& s) const {
  double seconds = 0;
  for (const PlanTraffic::Shared& x : shared_parameters(l)) {
    const int64_t first = std::min(x.owner, x.reader), last = std::max(x.owner, x.reader);
    const int64_t ranks = std::min(l.ranks_of_stage(first), l.ranks_of_stage(last));
    const DeviceGroup& group = group_of_ranks(l.first_rank(first), l.first_rank(last + 1) - 1);
    const bool within = &group == &group_of_stage(l, first) && &group == &group_of_stage(l, last);
    const RankAxis pair{2, within ? l.first_rank(last) - l.first_rank(first) : group.devices()};
    auto sent = [&](double bytes) {
      return collective_time(group, CollectiveKind::kSend, pair, bytes / static_cast<double>(ranks)).seconds;
    };
    const double times = times_sent(problem_, l, x.owner, x.reader);
    const double there = sent(x.parameters), back = sent(x.gradients / times);
    double before = 0, after = 0, busiest = 0;
    const int64_t ahead = s.micro_batches > 1 ? 0 : 1;
    for (int64_t stage = x.owner; stage < x.reader; ++stage) {
      before += s.chunks[static_cast<size_t>(stage)][0].forward;
      after += s.chunks[static_cast<size_t>(stage + ahead)][0].backward;
    }
    for (const std::vector<StageTimes>& stage : s.chunks) {
      double pass = 0;
      for (const StageTimes& c : stage) pass += c.forward + c.backward + c.weight;
      busiest = std::max(busiest, pass);
    }
    seconds += std::max(0., there - before) + std::max(0., back - after);
    seconds += std::max(0., back - busiest) * (times - 1);
  }
  return seconds;
}

}  // namespace partita
