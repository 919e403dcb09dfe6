#include "partitioner/planner/search/neighbours.h"

#include <algorithm>

namespace partita {
namespace {

class Neighbours {
 public:
  Neighbours(CostModel& model, const Space& space, const Layout& of)
      : model_(model), problem_(model.problem()), space_(space), of_(of) {}

  std::vector<Layout> all() {
    move_units();
    offload();
    divide();
    pass_otherwise();
    return std::move(all_);
  }

 private:
  template <typename Change>
  void with(Change change) {
    Layout l = of_;
    change(l);
    if (space_.recompute_by_block) l.recompute = RecomputeMode::kNone, l.recompute_blocks.clear();
    l.buckets = space_.buckets, l.hierarchical_group = space_.hierarchical_group;  // with_exchanges() chooses again
    const bool known = l == of_ || std::ranges::find(all_, l) != all_.end();
    if (!known && invalid(problem_, l).empty()) all_.push_back(std::move(l));
  }

  // A unit at each end of a stage.
  void move_units() {
    if (of_.interleave > 1 || !space_.leaves_cuts_open(problem_, of_)) return;
    const std::vector<int>& cuts = of_.cuts.empty() ? model_.even_cuts(of_) : of_.cuts;
    for (size_t k = 0; k + 1 < cuts.size(); ++k) {
      for (const int units : {-1, 1}) {
        if (cuts[k] + units < 1 || cuts[k + 1] - units < 1) continue;
        with([&](Layout& l) { l.cuts = cuts, l.cuts[k] += units, l.cuts[k + 1] -= units; });
      }
    }
  }

  // More or less of the optimizer's states on the host.
  void offload() {
    if (of_.offload != OffloadMode::kOptimizer || !problem_.own_programs || space_.offload_fraction) return;
    for (const double more : {-1. / 8, -1. / 32, 1. / 32, 1. / 8}) {
      const double fraction = std::min(1., of_.offload_fraction + more);
      if (fraction > 0) with([&](Layout& l) { l.offload_fraction = fraction; });
    }
  }

  // Other states divided among ranks, or among those of groups.
  void divide() {
    if (of_.sample_ranks() == 1) return;
    std::vector<int64_t> groups = {of_.zero_group};
    if (space_.zero_group_open && model_.may_group(of_)) {
      for (const int64_t n : divisors(of_.sample_ranks()))
        if (n > 1 && n % of_.expert == 0) groups.push_back(n < of_.sample_ranks() ? n : 0);
    }
    for (const int zero : space_.zero) {
      for (const int64_t ranks : groups) {
        with([&](Layout& l) {
          l.zero = zero, l.zero_group = zero > 0 ? ranks : 0;
          if (!space_.prefetch_blocks) l.prefetch_blocks.reset();
        });
      }
    }
  }

  // Other micro-batches, positions divided or not, and what travels while others compute.
  void pass_otherwise() {
    for (const int64_t samples : space_.micro_batch) {
      if (samples == 2 * of_.micro_batch || 2 * samples == of_.micro_batch)
        with([&](Layout& l) { l.micro_batch = samples; });
    }
    for (const bool divided : space_.sequence_parallel) {
      if (of_.tensor > 1) with([&](Layout& l) { l.sequence_parallel = divided; });
    }
    if (space_.overlap_products) return;
    Layout whole = of_;
    whole.overlap_products.reset();
    for (const auto& other : {std::optional(whole), model_.with_products_in_parts(whole)}) {
      if (other) with([&](Layout& l) { l.overlap_products = other->overlap_products; });
    }
  }

  CostModel& model_;
  const Problem& problem_;
  const Space& space_;
  const Layout& of_;
  std::vector<Layout> all_;
};

}  // namespace

std::vector<Layout> neighbours(CostModel& model, const Space& space, const Layout& of) {
  return Neighbours(model, space, of).all();
}

}  // namespace partita
