// Groups of layouts (layout_groups.h) are looked at by ascending bound, up to where it passes the best time found. The
// best few are replayed by the simulator.
#include "partitioner/planner/search/search.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <queue>
#include <set>

#include "base/cat.h"
#include "base/status.h"
#include "partitioner/planner/search/layout_groups.h"
#include "partitioner/planner/search/layout_order.h"
#include "partitioner/planner/search/neighbours.h"
#include "partitioner/planner/search/put_off.h"
#include "partitioner/planner/search/shortlist.h"
#include "partitioner/planner/search/stage_space.h"
#include "partitioner/planner/search/waiting_less.h"
#include "partitioner/planner/space/layout_space.h"

namespace partita {
namespace {

// Where stages differ: chunks of each, and cuts that are balanced and layouts that are priced.
constexpr int64_t kMostInterleaveApart = 4, kMostEffort = 300000;
constexpr double kNever = Shortlist::kNever;
// Programs that compute blocks again fill their devices: one a little more over than another is not allocated in vain.
constexpr double kMoreThanRefused = 1.1;
// Times the fastest layout's seconds: what takes longer with all or none of the optimizer's states on the host is not
// looked at with parts of them there.
constexpr double kNear = 1.1;

class Search {
 public:
  Search(CostModel& model, const SearchOptions& options)
      : model_(model), problem_(model.problem()), options_(options), list_(model, options) {}

  absl::StatusOr<SearchResult> run() {
    auto start = std::chrono::steady_clock::now();
    auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
    PARTITA_ASSIGN_OR_RETURN(space_, layout_space(problem_, options_.pin, options_.recompute, options_.micro));
    out_of_time_ = [this, elapsed] {
      return options_.time_limit > 0 && elapsed() > options_.time_limit &&
             (list_.fastest() < kNever || options_.gives_up);
    };
    groups_ = layout_groups(model_, space_, [this](std::string why) { list_.contradict(std::move(why)); });
    for (bool found = false; !found;) {
      explore();
      if (out_.considered == 0) return contradiction();
      list_.choose();
      PARTITA_ASSIGN_OR_RETURN(found, list_.allocate_best());
      if (!found) compute_refused_again();
    }
    if (!out_.best && !out_.nearest) return contradiction();
    out_.seconds = elapsed();
    return list_.finish();
  }

 private:
  // Looks at groups until their bound passes the fastest layout that is not refused.
  void explore() {
    out_.bounded = 0, out_.gap = 0;
    compute_slower_again();
    while (next_ < groups_.size() && !passed(groups_[next_].bound, groups_.size() - next_)) look_at(groups_[next_++]);
    look_at_stages_that_differ();
    look_at_those_for_memory();
    look_around();
  }

  // Layouts near the fastest one, for as long as that leads to faster ones.
  void look_around() {
    for (const Layout* best = list_.fastest_layout(); best != nullptr && !out_of_time_();) {
      const Layout from = *best;
      if (!looked_around_.insert(order(0, from)).second) return;
      for (const Layout& l : neighbours(model_, space_, from)) offer(l);
      best = list_.fastest_layout();
    }
  }

  // Stages with gathers or scatters in every micro-batch: memory is all that they gain.
  void look_at_those_for_memory() {
    for_memory_.take_up(list_.fastest(), [&](double seconds, const Layout& l) {
      if (out_of_time_()) {
        leave_out(seconds);
      } else if (can_fit_offloaded(l)) {
        consider_offloads(l);
      }
    });
  }

  // Whether nothing of `left` groups with this bound or larger ones is looked at any more.
  bool passed(double bound, size_t left) {
    if (bound >= list_.fastest()) {
      out_.bounded += static_cast<int64_t>(left);
      return true;
    }
    if (!out_of_time_()) return false;
    leave_out(bound);
    return true;
  }

  // Something with this bound is not looked at.
  void leave_out(double bound) {
    if (list_.fastest() < kNever) out_.gap = std::max(out_.gap, 1 - bound / list_.fastest());
  }

  // Best bound first: a combination's own is worked out when it is its turn, which it may then have to wait for again.
  void look_at_stages_that_differ() {
    if (space_.splits.empty()) return;
    StageSpace stages(model_, space_);
    const std::vector<StageChoice> choices = stages.below(list_.fastest());
    using Turn = std::tuple<double, size_t, bool>;  // bound, choice, whether the bound is its own
    std::priority_queue<Turn, std::vector<Turn>, std::greater<>> turns;
    for (size_t k = 0; k < choices.size(); ++k) turns.emplace(choices[k].bound, k, false);
    effort_ = 0;
    while (!turns.empty()) {
      const auto [bound, k, own] = turns.top();
      if (passed(bound, turns.size())) break;
      if (effort_ >= kMostEffort && list_.fastest() < kNever) {
        leave_out(bound);
        break;
      }
      turns.pop();
      Layout l = stages.layout(choices[k]);
      l.cut_names = space_.cut_names;
      if (own) {
        look_at({bound, std::move(l)});
      } else if (std::string why = invalid(problem_, l); !why.empty()) {
        list_.contradict(std::move(why));
      } else {
        turns.emplace(std::max(bound, model_.lower_bound(l)), k, true);
      }
    }
    leave_out(stages.dropped_bound());
  }

  void look_at(const LayoutGroup& group) {
    Layout l = group.layout;
    const bool shares = any_stage(l, [](const Layout& s) { return s.data * s.expert * s.context > 1; });
    if (searched(l) && !may_fit(l)) return void(++out_.unfit);
    for (PipelineSchedule schedule : space_.schedule) {
      bool interleaved = schedule == PipelineSchedule::kInterleaved;
      if (l.pipeline == 1 && schedule != space_.schedule.front()) continue;
      // As fast as 1f1b, with more in memory.
      if (searched(l) && schedule == PipelineSchedule::kGpipe && space_.schedule.size() > 1) continue;
      std::vector<int64_t> depths = interleaved && l.pipeline > 1 ? space_.interleave : std::vector<int64_t>{1};
      for (int64_t depth : depths) {
        l.schedule = schedule, l.interleave = depth;
        if (searched(l) && depth > kMostInterleaveApart && depths.size() > 1) break;
        if (l.pipeline > 1 && space_.cuts.empty() && (++effort_, model_.cuts_bound(l, searched(l)) >= list_.fastest()))
          continue;
        std::string why = invalid(problem_, l);
        if (why.empty()) why = space_.other_parts(l);
        if (!why.empty()) {
          list_.contradict(std::move(why));
          continue;
        }
        bool fits = false;  // with less of its states divided
        least_offered_ = kNever;
        for (int zero : space_.zero) {
          if (zero > 0 && !shares && space_.zero.size() > 1) continue;
          const bool for_memory = zero >= 2 && l.pipeline > 1 && space_.zero.size() > 1;
          if (for_memory && (fits || searched(l))) continue;
          l.zero = zero, l.zero_group = space_.zero_group_of(l);
          l.reshard_after_forward = space_.reshard_after_forward, l.buckets = space_.buckets;
          l.hierarchical_group = space_.hierarchical_group, l.prefetch_blocks = space_.prefetch_blocks;
          if (zero == 0 || l.zero_group == 0 || (why = invalid(problem_, l)).empty()) {  // all else was valid before
            if (!for_memory) fits |= consider_offloads(l);
            if (for_memory) for_memory_.add(least_offered_, l);
          } else {
            list_.contradict(std::move(why), true);
          }
        }
      }
    }
  }

  // Where it fits, nothing is gained by offloading more. Whether it fits with the least offloaded.
  bool consider_offloads(Layout l) {
    found_ = kNever;
    bool first = true;
    for (OffloadMode offload : space_.offload) {
      l.offload = offload, l.offload_fraction = space_.offload_fraction.value_or(1);
      const bool parts = offload == OffloadMode::kOptimizer && problem_.own_programs && !space_.offload_fraction;
      if (parts ? consider_parts(l) : consider(l)) return first;
      first = false;
    }
    return false;
  }

  // As much of the optimizer's states offloaded as lets it fit as it is, or all; and less, with blocks computed again
  // for the rest, where that may be the fastest.
  bool consider_parts(Layout l) {
    const double needed = std::min(1., model_.offload_needed(l));
    if (needed > 0) l.offload_fraction = needed;
    bool fits = consider(l);
    if (!fits && needed < 1) l.offload_fraction = 1, fits = consider(l);
    if ((offered_ < list_.fastest() ? found_ : offered_) >= kNear * list_.fastest()) return fits;
    for (double part : {0.25, 0.5, 0.75}) {
      if (part < needed) l.offload_fraction = part, consider(l);
    }
    return fits;
  }

  // Whether stages fit, wherever they are cut, with the choices that leave least in memory.
  bool may_fit(Layout l) {
    l.zero = std::min(1, space_.zero.back()), l.zero_group = space_.zero_group_of(l);
    if (space_.zero.size() == 1) l.zero = space_.zero[0];
    return can_fit_offloaded(l);
  }

  bool can_fit_offloaded(Layout l) {
    return std::any_of(space_.offload.begin(), space_.offload.end(), [&](OffloadMode offload) {
      l.offload = offload;
      return can_fit(l);
    });
  }

  // As it is, or with all blocks computed again.
  bool can_fit(Layout l) {
    if (++effort_, model_.can_fit(l)) return true;
    if (!may_compute_again(l)) return false;
    l.recompute = space_.least_kept;
    return ++effort_, model_.can_fit(l);
  }

  bool searched(const Layout& l) const { return space_.searches_stages(l); }
  bool cuts_are_open(const Layout& l) const { return space_.leaves_cuts_open(problem_, l); }

  // Blocks evenly, and balanced by time where cuts are open. Where what is balanced does not fit, balanced among what
  // fits: with blocks computed again (compute_again), or on devices that differ as it is. Whether any fits as it is.
  bool consider(Layout l) {
    const bool mixed = problem_.cluster->groups.size() > 1 || searched(l);
    bool fits = false;
    l.cuts = space_.cuts;
    if (searched(l) && l.interleave == 1 && l.cuts.empty() && !can_fit(l)) {
      ++out_.unfit;
      return false;
    }
    if (!searched(l) || !l.cuts.empty()) {
      if (!l.cuts.empty() && l.cuts == model_.even_cuts(l)) l.cuts.clear();
      fits = offer(l);
    }
    if (!cuts_are_open(l)) return fits;
    const std::vector<int>& cuts = model_.balanced_cuts(l);
    if (!searched(l) && cuts == model_.even_cuts(l)) return fits;
    l.cuts = cuts;
    if (offer(l)) return true;
    if (l.interleave > 1 || !mixed || may_compute_again(l)) return fits;
    l.cuts = model_.fitting_cuts(l);
    return (!l.cuts.empty() && model_.bound(l, l.cuts) < list_.fastest() && offer(l)) || fits;
  }

  // Takes it, and it with its states in groups of ranks. Whether it fits as it is.
  bool offer(const Layout& l) {
    const Layout whole = model_.with_exchanges(l);
    const Candidate c{whole, model_.predict(whole, false)};
    const bool fits = take_or_compute_again(c);
    if (may_wait_less_in_groups(model_, space_, c, list_.fastest())) offer_in_groups(l);
    offered_ = c.prediction.step_seconds, least_offered_ = std::min(least_offered_, offered_);
    return fits;
  }

  void offer_in_groups(Layout l) {
    const auto [at, fresh] = group_sizes_.try_emplace(family(l));
    if (fresh) at->second = group_sizes(model_, l);
    for (const int64_t ranks : at->second) l.zero_group = ranks, offer(l);
  }

  // Where it does not fit, also with some of its blocks computed again. Whether it fits as it is.
  bool take_or_compute_again(const Candidate& c) {
    if (take(c)) {
      wait_less(c);
      return true;
    }
    if (c.prediction.step_seconds < list_.fastest()) {
      compute_again(c.layout);
    } else if (may_compute_again(c.layout)) {
      slower_.add(c.prediction.step_seconds, c.layout);
    }
    return false;
  }

  bool may_compute_again(const Layout& l) const {
    return space_.recompute_by_block && l.recompute == RecomputeMode::kNone;
  }

  // Layouts like it that wait less: each that fits, or may, or does with blocks computed again, is one to choose.
  void wait_less(const Candidate& c) {
    for (const Layout& l : waiting_less(model_, space_, c, list_.fastest())) {
      const Candidate other{l, model_.predict(l, false)};
      const bool again = may_compute_again(l) && l.recompute_blocks.empty();
      if (!take(other) && again && other.prediction.step_seconds < list_.fastest()) compute_again_as(l);
    }
  }

  // Blocks are computed again so that the layout fits, as it is, or waiting less where that may be worth as much again.
  void compute_again(const Layout& l) {
    if (!may_compute_again(l)) return;
    const Candidate c{l, model_.predict(l, false)};
    const double again = compute_again_as(l), added = again - c.prediction.step_seconds;
    if (again == kNever) return;
    for (const Layout& other : waiting_less(model_, space_, c, list_.fastest() - added)) {
      if (model_.predict(other, false).step_seconds + added < list_.fastest()) compute_again_as(other);
    }
  }

  // Until it fits with the room that programs like it turned out to need: seconds, kNever where it does not.
  double compute_again_as(const Layout& l) {
    double least = kNever;  // of the stages' room
    for (const DeviceGroup& g : problem_.cluster->groups)
      least = std::min(least, g.device.memory_bytes - g.device.reserve_bytes);
    const double beyond = list_.beyond(l, least);
    const bool moves = may_move(l);
    if (options_.allocate && beyond == 0) {  // what may fit after all, as the compiler is to say
      if (const auto doubtful = model_.with_recompute(l, -Shortlist::kCountError * least))
        take({*doubtful, model_.predict(*doubtful, false)});
      if (moves) move_and_compute_again(l, -Shortlist::kCountError * least);
    }
    std::optional<Layout> again = model_.with_recompute(l, kMoreThanRefused * beyond);
    const bool never = !again;
    if (never) again = l, again->recompute = space_.least_kept, again->recompute_blocks.clear();  // the nearest
    const Candidate c{*again, model_.predict(*again, false)};
    if (take(c)) wait_less(c);
    if (moves) move_and_compute_again(l, kMoreThanRefused * beyond);
    return never ? kNever : c.prediction.step_seconds;
  }

  // Whether units may move between its stages: asked once of the cuts that are looked at, of those that are balanced.
  bool may_move(const Layout& l) {
    if (!cuts_are_open(l) || l.interleave > 1) return false;
    return !l.cuts.empty() || model_.balanced_cuts(l) == model_.even_cuts(l);
  }

  // Stages that compute much again give units to others.
  void move_and_compute_again(Layout l, double spare) {
    if (++effort_, model_.balanced_bound(l) >= list_.fastest()) return;
    l.cuts = model_.fitting_cuts(l, spare);
    if (l.cuts.empty() || model_.bound(l, l.cuts) >= list_.fastest()) return;
    if (auto again = model_.with_recompute(l, spare)) l = *std::move(again);
    take({l, model_.predict(l, false)});
  }

  // Those that were not worth it while something faster seemed to fit.
  void compute_slower_again() {
    slower_.take_up(list_.fastest(), [&](double, const Layout& l) { compute_again(l); });
  }

  // Keeps a priced layout where it is good; whether it fits by the count.
  bool take(const Candidate& c) {
    ++effort_;
    if (c.prediction.fits) found_ = std::min(found_, c.prediction.step_seconds);
    return list_.take(c);
  }

  // What the compiler refused, or would, may fit with more computed again.
  void compute_refused_again() {
    for (Layout& l : list_.drop_refused()) {
      l.recompute_blocks.clear();
      if (may_compute_again(l)) compute_again(l);
    }
  }

  absl::Status contradiction() const {
    std::string all;
    for (size_t k = 0; k < out_.contradictions.size() && k < 4; ++k) append(all, k ? "; " : "", out_.contradictions[k]);
    return absl::InvalidArgumentError(cat("no layout is possible on ", problem_.devices(),
                                          " devices with a global batch of ", problem_.global_batch, ": ", all));
  }

  CostModel& model_;
  const Problem& problem_;
  const SearchOptions& options_;
  Shortlist list_;
  SearchResult& out_ = list_.result();
  Space space_;
  std::vector<LayoutGroup> groups_;
  size_t next_ = 0;                // group to look at
  double found_ = kNever;          // of those with the offloads that are being considered
  double offered_ = 0;             // of what was offered last, as it is
  double least_offered_ = kNever;  // of a layout, however its states are divided
  std::map<Family, std::vector<int64_t>> group_sizes_;
  PutOff slower_;                                         // that do not fit as they are
  PutOff for_memory_;                                     // stages with ZeRO-2 or 3
  std::set<decltype(order(0, Layout()))> looked_around_;  // layouts
  std::function<bool()> out_of_time_;
  int64_t effort_ = 0;
};

}  // namespace

absl::StatusOr<SearchResult> search(CostModel& model, const SearchOptions& options) {
  return Search(model, options).run();
}

}  // namespace partita
