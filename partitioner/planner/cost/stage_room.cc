#include "partitioner/planner/cost/stage_room.h"

#include <algorithm>
#include <numeric>

#include "partitioner/planner/cost/memory/chunk_slots.h"
#include "partitioner/planner/cost/memory/program_memory.h"

namespace partita {
namespace {

constexpr int kRounds = 16;  // a block that is computed again takes working memory, once a stage
// Copies are less certain than compute: what they are to save, of the seconds that the choice costs without the host's
// memory, and of what the stage's units take.
constexpr double kWorthHost = 0.05, kWorthHostOfStage = 1e-3;

}  // namespace

CostModel::StageRoom::StageRoom(CostModel& model, const Layout& whole, const std::vector<StageUnits>& chunks,
                                const Layout& own, int64_t stage)
    : problem_(model.problem_),
      own_(own),
      device_(model.group_of_stage(whole, stage).device),
      held_(model.held(whole, chunks, stage)) {
  const Workload& w = *problem_.workload;
  const std::vector<UnitCost>& costs = model.unit_costs(model.group_of_stage(whole, stage), own);
  each_.resize(w.kinds.size()), waiting_.resize(w.kinds.size());
  auto hosted = [&](RecomputeMode mode) { return problem_.own_programs && waits_on_host(mode_on(device_, mode)); };
  const bool apart = puts_off(stage == 0, own);
  for (size_t k = 0; k < each_.size(); ++k) {
    const UnitWork& u = w.kinds[k];
    seconds_.push_back(seconds(costs[k], own));
    if (!u.is_block()) continue;
    const auto kept = [&](RecomputeMode mode) { return kept_on_rank(u, problem_, device_, own, mode, apart); };
    const double all = kept(RecomputeMode::kNone).on_device;
    for (size_t m = 0; m < kRecomputeModes; ++m) {
      const RecomputeMode mode = static_cast<RecomputeMode>(m);
      const bool waits = hosted(mode);
      if (mode != RecomputeMode::kFull && !waits && !(w.recomputes & mode_bit(mode))) continue;
      hosted_ = hosted_ || waits;
      const KeptBytes left = kept(mode);
      waiting_[k][m] = held_ * left.on_host;
      each_[k].modes[m] = {held_ * (all - left.on_device), again_seconds(costs[k], mode, apart)};
    }
  }
}

double CostModel::StageRoom::missing(const StageUnits& units) const {
  return stage_memory(problem_, device_, own_, units, held_).total() - device_.memory_bytes;
}

std::optional<double> CostModel::StageRoom::compute_again(StageUnits& units, double spare) const {
  const StageUnits as_is = units;
  std::optional<double> least = choose(units, spare, RecomputeMode::kFull, false);
  if (!hosted_) return least;
  double stage = 0;
  for (size_t k = 0; k < seconds_.size(); ++k) stage += units.counts[k] * seconds_[k];
  const double worth = std::max(kWorthHost * least.value_or(0), kWorthHostOfStage * stage);
  // What is on its way takes room on the device, most of it kOffload's: where a stage has few blocks, or nearly all of
  // them have to go, less of it is needed without.
  for (bool offload : {true, false}) {
    StageUnits other = as_is;
    const std::optional<double> seconds = choose(other, spare, RecomputeMode::kFullOffload, offload);
    if (!seconds || (least && *seconds > *least - worth)) continue;
    least = seconds, units = std::move(other);
  }
  return least;
}

std::optional<double> CostModel::StageRoom::choose(StageUnits& units, double spare, RecomputeMode last,
                                                   bool offload) const {
  std::vector<RecomputeItems> items = each_;
  for (size_t k = 0; k < items.size(); ++k) {
    items[k].count = problem_.workload->kinds[k].is_block() ? units.counts[k] : 0;
    for (size_t m = static_cast<size_t>(last) + 1; m < kRecomputeModes; ++m) items[k].modes[m] = {};
    if (!offload) items[k].modes[static_cast<size_t>(RecomputeMode::kOffload)] = {};
  }
  double bytes = missing(units) + spare, most = 0, more = 0;
  for (const RecomputeItems& x : items) {
    double of_one = 0;
    for (const RecomputeItems::Mode& m : x.modes) of_one = std::max(of_one, m.bytes);
    most += x.count * of_one * (1 - 1e-9);
  }
  for (int round = 0; round < kRounds; ++round) {
    // Beyond the first round more is asked for than is missing, which all there is may still be.
    const auto chosen = choose_recompute(items, round > 0 ? std::min(bytes, most) : bytes);
    if (!chosen) return std::nullopt;
    more = units.recomputed == *chosen ? 2 * more : 0;
    units.recomputed = *chosen;
    const double over = missing(units) + spare;
    if (over > 0) {
      if (bytes >= most) return std::nullopt;
      more = std::max(more, over);
      bytes += more;
      continue;
    }
    double seconds = 0, on_host = 0;
    for (size_t k = 0; k < items.size(); ++k) {
      for (size_t m = 0; m < kRecomputeModes; ++m) {
        seconds += (*chosen)[k][m] * items[k].modes[m].seconds;
        on_host += (*chosen)[k][m] * waiting_[k][m];
      }
    }
    return on_host <= device_.host_memory_bytes ? std::optional(seconds) : std::nullopt;
  }
  return std::nullopt;
}

double CostModel::missing(const Layout& l, const std::vector<StageUnits>& chunks, int64_t stage) const {
  const DeviceProfile& device = group_of_stage(l, stage).device;
  const StageUnits units = units_of_stage(l, chunks, stage);
  return stage_memory(problem_, device, l.of_stage(stage), units, held(l, chunks, stage)).total() - device.memory_bytes;
}

double CostModel::held(const Layout& l, const std::vector<StageUnits>& chunks, int64_t stage) const {
  const double all = in_flight(problem_, l, stage);
  if (l.interleave == 1 || l.schedule != PipelineSchedule::kInterleaved || !problem_.own_programs) return all;
  const Workload& w = *problem_.workload;
  const Layout own = l.of_stage(stage);
  const DeviceProfile& device = group_of_stage(l, stage).device;
  std::vector<double> kept(static_cast<size_t>(l.interleave), 0);
  for (size_t c = 0; c < kept.size(); ++c) {
    const StageUnits& units = chunks[c * static_cast<size_t>(l.pipeline) + static_cast<size_t>(stage)];
    for (size_t k = 0; k < units.counts.size(); ++k) {
      for_each_mode(units, k, w.kinds[k], own, [&](RecomputeMode mode, double n) {
        if (!waits_on_host(mode_on(device, mode))) kept[c] += n * kept_bytes(w.kinds[k], problem_, own, mode);
      });
    }
  }
  if (std::ranges::all_of(kept, [&](double bytes) { return bytes == kept[0]; })) return all;
  const double once = std::accumulate(kept.begin(), kept.end(), 0.0);
  const int64_t turns = l.overlapped(), groups = (micro_batches(problem_, l) + turns - 1) / turns;
  return once > 0 ? static_cast<double>(turns) * slot_bytes(kept, l.pipeline, stage, groups) / once : all;
}

}  // namespace partita
