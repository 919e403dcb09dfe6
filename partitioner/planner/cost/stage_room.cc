#include "partitioner/planner/cost/stage_room.h"

#include "partitioner/planner/cost/program_memory.h"

namespace partita {
namespace {

constexpr int kRounds = 4;  // a block that is computed again takes working memory, once a stage

}  // namespace

CostModel::StageRoom::StageRoom(CostModel& model, const Layout& whole, const Layout& own, int64_t stage)
    : problem_(model.problem_),
      own_(own),
      device_(model.group_of_stage(whole, stage).device),
      held_(model.held(whole, model.chunk_units(whole), stage)) {
  const Workload& w = *problem_.workload;
  const std::vector<UnitCost>& costs = model.unit_costs(model.group_of_stage(whole, stage), own);
  each_.resize(w.kinds.size());
  for (size_t k = 0; k < each_.size(); ++k) {
    const UnitWork& u = w.kinds[k];
    if (!u.is_block()) continue;
    const double all = kept_bytes(u, w, own, RecomputeMode::kNone);
    for (size_t m = 0; m < kRecomputeModes; ++m) {
      const RecomputeMode mode = static_cast<RecomputeMode>(m);
      if (mode != RecomputeMode::kFull && !(w.recomputes & mode_bit(mode))) continue;
      each_[k].modes[m] = {held_ * (all - kept_bytes(u, w, own, mode)), again_seconds(costs[k], mode)};
    }
  }
}

double CostModel::StageRoom::missing(const StageUnits& units) const {
  return stage_memory(problem_, device_, own_, units, held_).total() - device_.memory_bytes;
}

std::optional<double> CostModel::StageRoom::compute_again(StageUnits& units, double spare) const {
  std::vector<RecomputeItems> items = each_;
  for (size_t k = 0; k < items.size(); ++k)
    items[k].count = problem_.workload->kinds[k].is_block() ? units.counts[k] : 0;
  double bytes = missing(units) + spare;
  for (int round = 0; round < kRounds; ++round) {
    const auto chosen = choose_recompute(items, bytes);
    if (!chosen) return std::nullopt;
    units.recomputed = *chosen;
    const double over = missing(units) + spare;
    bytes += over;
    if (over > 0) continue;
    double seconds = 0;
    for (size_t k = 0; k < items.size(); ++k) {
      for (size_t m = 0; m < kRecomputeModes; ++m) seconds += (*chosen)[k][m] * items[k].modes[m].seconds;
    }
    return seconds;
  }
  return std::nullopt;
}

// Chunks of an interleaved stage that have more units than others have slots of their own (divide_slots), and its first
// chunks, which are larger where units do not divide, are in flight longest: once `stages` groups of micro-batches have
// gone through chunks [0, j] anew, and back through all behind the (chunks - 1 - j)-th, the first have twice as many in
// flight.
double CostModel::held(const Layout& l, const std::vector<StageUnits>& chunks, int64_t stage) const {
  const double all = in_flight(problem_, l, stage);
  if (l.interleave == 1 || l.schedule != PipelineSchedule::kInterleaved || !problem_.own_programs) return all;
  const size_t n = static_cast<size_t>(l.interleave);
  std::vector<int> units;
  for (size_t c = 0; c < n; ++c)
    units.push_back(chunks[c * static_cast<size_t>(l.pipeline) + static_cast<size_t>(stage)].units);
  std::vector<int> sizes = units;
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  double held = 0, sum = 0;
  std::vector<int> before(n + 1, 0);  // chunks of one size among the first
  for (int size : sizes) {
    for (size_t c = 0; c < n; ++c) before[c + 1] = before[c] + (units[c] == size);
    int most = 0;
    for (size_t j = 0; j < n; ++j) most = std::max(most, before[n - 1 - j] + before[j + 1]);
    held += size * most, sum += size * before[n];
  }
  return sum > 0 ? std::min(static_cast<double>(micro_batches(problem_, l)), all * held / sum) : all;
}

}  // namespace partita
