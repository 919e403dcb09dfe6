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
      held_(in_flight(model.problem_, whole, stage)) {
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

}  // namespace partita
