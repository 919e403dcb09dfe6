// Micro-batches that take turns (partitioner/communicate/overlap_micro_batches.h): what they hide is replayed with the
// rest of what travels (exchange_times.cc); here is whether it pays.
#include <algorithm>

#include "partitioner/planner/cost/cost_model.h"

namespace partita {
namespace {

constexpr double kWorthTurns = 5e-3;  // of the step
constexpr double kLeastOfTwo = 0.5;   // of what two things take one after the other, that they take side by side

}  // namespace

int64_t CostModel::overlapped(const Layout& l) const {
  return problem_.own_programs
             ? std::clamp<int64_t>(l.overlapped(), 1, std::max<int64_t>(1, micro_batches(problem_, l)))
             : 1;
}

// In a pipeline the search has such layouts beside the others: their fastest divide the work in another way.
std::optional<Layout> CostModel::taking_turns(const Layout& l) {
  Layout in_turns = l;
  in_turns.overlap_micro_batches = kInTurns;
  if (!problem_.own_programs || l.pipeline > 1 || l.overlapped() > 1 || !invalid(problem_, in_turns).empty()) return {};
  const Prediction as_is = predict(l, false);
  const double worth = kWorthTurns * as_is.step_seconds;
  if (as_is.breakdown.within_passes() < worth) return {};
  if (predict(in_turns, false).step_seconds > as_is.step_seconds - worth) return {};
  return in_turns;
}

// Of what a unit computes and sends, the shorter is hidden at best, but for what it slows the other.
double CostModel::least_in_turns(const Layout& l) {
  const int64_t most = l.overlap_micro_batches.value_or(l.pipeline > 1 ? 1 : kInTurns);
  const bool turns = most > 1 && micro_batches(problem_, l) > 1, parts = l.tensor > 1 && !l.overlap_products;
  if (!problem_.own_programs || (!turns && !parts)) return 1;
  if (problem_.cluster->groups.size() > 1 || !l.stages.empty()) return kLeastOfTwo;
  const double hides = 1 - std::min(1., slowdown(problem_.cluster->groups[0]));
  double least = 1;
  for (const UnitCost& c : unit_costs(problem_.cluster->groups[0], l)) {
    const double all = seconds(c, l), computed = c.forward + c.input_gradient + c.weight_gradient;
    const double sent = all - computed - again_seconds(c, l.recompute, puts_off(false, l));
    if (all > 0) least = std::min(least, 1 - hides * std::min(all - sent, sent) / all);
  }
  return least;
}

}  // namespace partita
