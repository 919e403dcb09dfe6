// Where stages begin so that each fits its device, as it is or with blocks computed again, and the slowest is as fast
// as it can be. Whether all units are through in T seconds a stage is found from the last stage on: each takes as many
// units as T and its memory allow. Early stages of 1F1B hold more micro-batches, so that they pay most for a unit, and
// get the rest. T is then narrowed down.
#include <algorithm>
#include <limits>

#include "partitioner/planner/cost/stage_room.h"

namespace partita {
namespace {

constexpr double kNear = 1e-5;  // of the slowest stage's time
constexpr double kNever = std::numeric_limits<double>::infinity();

}  // namespace

// Stages as runs of units, and what those take.
class CostModel::StageRun {
 public:
  StageRun(CostModel& model, const Layout& l, std::optional<double> again)
      : layouts_(l), seconds_(model.seconds_before(l)), again_(again) {
    const Workload& w = *model.problem_.workload;
    before_.emplace_back(w.kinds.size(), 0);
    for (int k : w.units) {
      before_.push_back(before_.back());
      ++before_.back()[static_cast<size_t>(k)];
    }
    const std::vector<StageUnits> chunks = model.chunk_units(l);
    for (int64_t s = 0; s < l.pipeline; ++s) rooms_.emplace_back(model, l, chunks, layouts_[static_cast<size_t>(s)], s);
  }

  // Units of each stage, none of which takes longer than `most` seconds; empty where there are none.
  std::vector<int> within(double most) const {
    std::vector<int> units(rooms_.size(), 0);
    size_t end = before_.size() - 1;
    for (size_t s = rooms_.size(); s-- > 0;) {
      size_t first = end;
      while (first > s && seconds(s, first - 1, end, most) <= most) --first;
      if (first == end) return {};
      units[s] = static_cast<int>(end - first), end = first;
    }
    return end == 0 ? units : std::vector<int>{};
  }

  double slowest(const std::vector<int>& units) const {
    double slowest = 0;
    for (size_t s = 0, first = 0; s < units.size(); first += static_cast<size_t>(units[s++]))
      slowest = std::max(slowest, seconds(s, first, first + static_cast<size_t>(units[s]), kNever));
    return slowest;
  }

 private:
  // Of units first to end - 1; more than `most` need not be told apart. Infinite where they do not fit.
  double seconds(size_t stage, size_t first, size_t end, double most) const {
    const double as_it_is = seconds_.between(stage, first, end);
    if (as_it_is > most) return as_it_is;
    StageUnits units{before_[end], static_cast<int>(end - first), {}, first == 0};
    for (size_t k = 0; k < units.counts.size(); ++k) units.counts[k] -= before_[first][k];
    const StageRoom& room = rooms_[stage];
    if (room.missing(units) + again_.value_or(0) <= 0) return as_it_is;
    if (!again_) return kNever;
    const std::optional<double> more = room.compute_again(units, *again_);
    return more ? as_it_is + *more : kNever;
  }

  const StageLayouts layouts_;
  const UnitSums seconds_;
  const std::optional<double> again_;
  std::vector<std::vector<int>> before_;  // units of each kind among the first 0, 1, …
  std::vector<StageRoom> rooms_;
};

bool CostModel::can_fit(const Layout& l) { return !StageRun(*this, l, {}).within(1e300).empty(); }

std::vector<int> CostModel::fitting_cuts(const Layout& l, std::optional<double> again) {
  const StageRun run(*this, l, again);
  const Cuts& anyhow = balanced(l);
  double least = anyhow.slowest;
  if (run.slowest(anyhow.units) <= least) return anyhow.units;  // which all fit as they are
  std::vector<int> best = run.within(1e300);
  if (best.empty()) return best;
  double most = run.slowest(best);
  while (most - least > kNear * most) {
    const double middle = (least + most) / 2;
    std::vector<int> units = run.within(middle);
    if (units.empty()) {
      least = middle;
    } else {
      most = run.slowest(units), best = std::move(units);
    }
  }
  return best;
}

}  // namespace partita
