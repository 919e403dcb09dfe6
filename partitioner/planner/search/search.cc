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
#include "partitioner/planner/search/cut_names.h"
#include "partitioner/planner/search/layout_groups.h"
#include "partitioner/planner/search/layout_order.h"
#include "partitioner/planner/search/put_off.h"
#include "partitioner/planner/search/refused_programs.h"
#include "partitioner/planner/search/stage_space.h"
#include "partitioner/planner/search/waiting_less.h"
#include "partitioner/planner/space/layout_space.h"

namespace partita {
namespace {

constexpr size_t kReplayed = 8;
// Where stages differ: chunks of each, and cuts that are balanced and layouts that are priced.
constexpr int64_t kMostInterleaveApart = 4, kMostEffort = 300000;
constexpr double kNever = 1e300;
// Programs that compute blocks again fill their devices: one a little more over than another is not allocated in vain.
constexpr double kMoreThanRefused = 1.1;
// Of the room, by which a layout may be over by the count for the compiler to be asked all the same.
constexpr double kCountError = 0.05;
// Times the fastest layout's seconds: what takes longer with all or none of the optimizer's states on the host is not
// looked at with parts of them there.
constexpr double kNear = 1.1;

class Search {
 public:
  Search(CostModel& model, const SearchOptions& options)
      : model_(model), problem_(model.problem()), options_(options), refusals_(problem_), names_(model) {}

  absl::StatusOr<SearchResult> run() {
    auto start = std::chrono::steady_clock::now();
    auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
    PARTITA_ASSIGN_OR_RETURN(space_, layout_space(problem_, options_.pin, options_.recompute, options_.micro));
    out_of_time_ = [this, elapsed] {
      return options_.time_limit > 0 && elapsed() > options_.time_limit && (fastest_ < kNever || options_.gives_up);
    };
    groups_ = layout_groups(model_, space_, [this](std::string why) { refuse(std::move(why)); });
    for (bool found = false; !found;) {
      explore();
      if (out_.considered == 0) return contradiction();
      choose();
      PARTITA_ASSIGN_OR_RETURN(found, allocate_best());
    }
    if (!out_.best && !out_.nearest) return contradiction();
    out_.others.insert(out_.others.end(), refused_.begin(), refused_.end());
    name_cuts();
    out_.seconds = elapsed();
    return std::move(out_);
  }

 private:
  // Looks at groups until their bound passes the fastest layout that is not refused.
  void explore() {
    out_.bounded = 0, out_.gap = 0;
    compute_slower_again();
    while (next_ < groups_.size() && !passed(groups_[next_].bound, groups_.size() - next_)) look_at(groups_[next_++]);
    look_at_stages_that_differ();
    look_at_those_for_memory();
  }

  // Stages with gathers or scatters in every micro-batch: memory is all that they gain.
  void look_at_those_for_memory() {
    for_memory_.take_up(fastest_, [&](double seconds, const Layout& l) {
      if (out_of_time_()) {
        leave_out(seconds);
      } else if (can_fit_offloaded(l)) {
        consider_offloads(l);
      }
    });
  }

  // Whether nothing of `left` groups with this bound or larger ones is looked at any more.
  bool passed(double bound, size_t left) {
    if (bound >= fastest_) {
      out_.bounded += static_cast<int64_t>(left);
      return true;
    }
    if (!out_of_time_()) return false;
    leave_out(bound);
    return true;
  }

  // Something with this bound is not looked at.
  void leave_out(double bound) {
    if (fastest_ < kNever) out_.gap = std::max(out_.gap, 1 - bound / fastest_);
  }

  // Best bound first: a combination's own is worked out when it is its turn, which it may then have to wait for again.
  void look_at_stages_that_differ() {
    if (space_.splits.empty()) return;
    StageSpace stages(model_, space_);
    const std::vector<StageChoice> choices = stages.below(fastest_);
    using Turn = std::tuple<double, size_t, bool>;  // bound, choice, whether the bound is its own
    std::priority_queue<Turn, std::vector<Turn>, std::greater<>> turns;
    for (size_t k = 0; k < choices.size(); ++k) turns.emplace(choices[k].bound, k, false);
    effort_ = 0;
    while (!turns.empty()) {
      const auto [bound, k, own] = turns.top();
      if (passed(bound, turns.size())) break;
      if (effort_ >= kMostEffort && fastest_ < kNever) {
        leave_out(bound);
        break;
      }
      turns.pop();
      Layout l = stages.layout(choices[k]);
      l.cut_names = space_.cut_names;
      if (own) {
        look_at({bound, std::move(l)});
      } else if (std::string why = invalid(problem_, l); !why.empty()) {
        refuse(std::move(why));
      } else {
        turns.emplace(std::max(bound, model_.lower_bound(l)), k, true);
      }
    }
    leave_out(stages.dropped_bound());
  }

  void refuse(std::string why) {
    if (out_.contradictions.size() < 16 && reasons_.insert(why).second) out_.contradictions.push_back(std::move(why));
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
        if (l.pipeline > 1 && space_.cuts.empty() && (++effort_, model_.cuts_bound(l, searched(l)) >= fastest_))
          continue;
        std::string why = invalid(problem_, l);
        if (why.empty()) why = space_.other_parts(l);
        if (!why.empty()) {
          refuse(std::move(why));
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
          } else if (reasons_.insert(why).second) {
            out_.contradictions.insert(out_.contradictions.begin(), std::move(why));
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
    if ((offered_ < fastest_ ? found_ : offered_) >= kNear * fastest_) return fits;
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

  // Whether the stages differ without a pin.
  bool searched(const Layout& l) const { return !l.stages.empty() && space_.stages.empty(); }

  // Whether stages may begin anywhere.
  bool cuts_are_open(const Layout& l) const {
    const bool mixed = problem_.cluster->groups.size() > 1;
    return l.pipeline > 1 && space_.cuts.empty() &&
           (searched(l) || (l.interleave == 1 && (mixed || !space_.ranges.pipeline.pinned)));
  }

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
    return (!l.cuts.empty() && model_.bound(l, l.cuts) < fastest_ && offer(l)) || fits;
  }

  // Takes it, and it with its states in groups of ranks. Whether it fits as it is.
  bool offer(const Layout& l) {
    const Layout whole = model_.with_exchanges(l);
    const Candidate c{whole, model_.predict(whole, false)};
    const bool fits = take_or_compute_again(c);
    if (may_wait_less_in_groups(model_, space_, c, fastest_)) offer_in_groups(l);
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
    if (c.prediction.step_seconds < fastest_) {
      compute_again(c.layout);
    } else if (may_compute_again(c.layout)) {
      slower_.add(c.prediction.step_seconds, c.layout);
    }
    return false;
  }

  bool may_compute_again(const Layout& l) const {
    return space_.recompute_by_block && l.recompute == RecomputeMode::kNone;
  }

  // Layouts like it that wait less: each that fits, or may, is one to choose.
  void wait_less(const Candidate& c) {
    for (const Layout& l : waiting_less(model_, space_, c, fastest_)) take({l, model_.predict(l, false)});
  }

  // Blocks are computed again so that the layout fits, as far as its gathers run ahead, or further.
  void compute_again(const Layout& l) {
    if (!may_compute_again(l)) return;
    compute_again_as(l);
    if (space_.prefetch_blocks) return;
    for (const Layout& further : model_.prefetching_further(l)) compute_again_as(further);
  }

  // Until it fits with the room that programs like it turned out to need.
  void compute_again_as(const Layout& l) {
    double least = kNever;  // of the stages' room
    for (const DeviceGroup& g : problem_.cluster->groups)
      least = std::min(least, g.device.memory_bytes - g.device.reserve_bytes);
    const double beyond = refusals_.beyond(l, least);
    const bool moves = may_move(l);
    if (options_.allocate && beyond == 0) {  // what may fit after all, as the compiler is to say
      if (const auto doubtful = model_.with_recompute(l, -kCountError * least))
        take({*doubtful, model_.predict(*doubtful, false)});
      if (moves) move_and_compute_again(l, -kCountError * least);
    }
    std::optional<Layout> again = model_.with_recompute(l, kMoreThanRefused * beyond);
    const bool never = !again;
    if (never) again = l, again->recompute = space_.least_kept, again->recompute_blocks.clear();  // the nearest
    const Candidate c{*again, model_.predict(*again, false)};
    if (take(c)) wait_less(c);
    if (moves) move_and_compute_again(l, kMoreThanRefused * beyond);
  }

  // Whether units may move between its stages: asked once of the cuts that are looked at, of those that are balanced.
  bool may_move(const Layout& l) {
    if (!cuts_are_open(l) || l.interleave > 1) return false;
    return !l.cuts.empty() || model_.balanced_cuts(l) == model_.even_cuts(l);
  }

  // Stages that compute much again give units to others.
  void move_and_compute_again(Layout l, double spare) {
    if (++effort_, model_.balanced_bound(l) >= fastest_) return;
    l.cuts = model_.fitting_cuts(l, spare);
    if (l.cuts.empty() || model_.bound(l, l.cuts) >= fastest_) return;
    if (auto again = model_.with_recompute(l, spare)) l = *std::move(again);
    take({l, model_.predict(l, false)});
  }

  // Those that were not worth it while something faster seemed to fit.
  void compute_slower_again() {
    slower_.take_up(fastest_, [&](double, const Layout& l) { compute_again(l); });
  }

  // Keeps a priced layout where it is good; whether it fits by the count.
  bool take(Candidate c) {
    const Layout& l = c.layout;
    ++out_.considered, ++effort_;
    const bool fits = c.prediction.fits;
    if (fits || is_doubtful(c.prediction)) {
      PricedLayout p = priced(c.prediction.step_seconds, c.prediction, l);
      if (!refusals_.covers(p)) {
        if (fits) fastest_ = std::min(fastest_, p.seconds), found_ = std::min(found_, p.seconds);
        (fits ? fit_ : doubtful_).push_back(std::move(p));
      }
    }
    if (fits) return true;
    ++out_.unfit;
    if (!out_.nearest || c.prediction.missing_bytes < out_.nearest->prediction.missing_bytes) out_.nearest = c;
    auto [at, fresh] = unfit_.try_emplace(family(c.layout), c);
    if (!fresh && c.prediction.missing_bytes < at->second.prediction.missing_bytes) at->second = std::move(c);
    return false;
  }

  // Whether it is over by less than the count may err, so that the compiler is to say.
  bool is_doubtful(const Prediction& p) const {
    return options_.allocate && p.missing_bytes <= kCountError * p.room(static_cast<size_t>(p.worst_stage));
  }

  // The fastest layout that fits, or may, and the best of each family, of which the first few are replayed.
  void choose() {
    const auto families = best_of_families(fit_);
    std::vector<const PricedLayout*> fit;
    for (const auto& [key, p] : families) fit.push_back(p);
    std::sort(fit.begin(), fit.end(), [](const PricedLayout* a, const PricedLayout* b) { return before(*a, *b); });
    const PricedLayout* first = fit.empty() ? nullptr : fit[0];
    if (fit.size() > options_.keep) fit.resize(options_.keep);
    out_.others.clear();
    for (const PricedLayout* p : fit)
      out_.others.push_back({p->layout, model_.predict(p->layout, out_.others.size() < kReplayed)});
    std::vector<Candidate> unfit;
    for (const auto& [key, c] : unfit_) {
      if (!families.contains(key)) unfit.push_back(c);
    }
    std::ranges::sort(unfit, {}, [](const Candidate& c) { return order(c); });
    for (size_t k = 0; k < unfit.size() && out_.others.size() < options_.keep; ++k) out_.others.push_back(unfit[k]);
    for (size_t k = fit.size(); k < out_.others.size() && k < kReplayed; ++k)
      out_.others[k].prediction = model_.predict(out_.others[k].layout, true);
    if (out_.nearest && out_.nearest->prediction.program_bytes.empty())
      out_.nearest->prediction = model_.predict(out_.nearest->layout, true);
    out_.best.reset();
    for (const PricedLayout& p : doubtful_) {
      if (first == nullptr || before(p, *first)) first = &p;
    }
    if (first == nullptr) return;
    out_.best = {first->layout, model_.predict(first->layout, true)};
    for (size_t k = 0; k < out_.others.size(); ++k) {
      Candidate& c = out_.others[k];
      if (!c.prediction.fits || !(order(c) < order(*out_.best))) continue;
      if (k >= kReplayed) c.prediction = model_.predict(c.layout, true);  // so far by the closed form
      if (order(c) < order(*out_.best)) out_.best = c;
    }
    std::erase_if(out_.others, [&](const Candidate& c) { return c.layout == out_.best->layout; });
  }

  // What is refused by now is no choice any more, found already or later, but perhaps with more computed again.
  void drop_refused() {
    std::vector<Layout> dropped;
    for (auto* all : {&fit_, &doubtful_}) {
      std::erase_if(*all, [&](const PricedLayout& x) {
        const bool covered = refusals_.covers(x);
        if (covered && may_compute_again(x.layout)) dropped.push_back(x.layout);
        return covered;
      });
    }
    fastest_ = kNever;
    for (const PricedLayout& p : fit_) fastest_ = std::min(fastest_, p.seconds);
    for (Layout& l : dropped) {
      l.recompute_blocks.clear();
      compute_again(l);
    }
  }

  // Whether the best layout is one whose program fits, or none is left. Else it is refused, and those with it that need
  // as much.
  absl::StatusOr<bool> allocate_best() {
    if (!options_.allocate || !out_.best) return true;
    if (options_.most_allocated > 0 && out_.allocated >= options_.most_allocated) {
      out_.best.reset();
      return true;
    }
    Candidate& best = *out_.best;
    ++out_.allocated;
    auto bytes = options_.allocate(names_.named(best.layout));
    if (bytes.ok()) {
      if (best.prediction.fits && is_another_program(best.prediction, *bytes)) {
        best.prediction.program_bytes = *std::move(bytes);
        return true;
      }
      hold_program(best.prediction, *std::move(bytes));
      if (best.prediction.fits) return true;
      if (!out_.nearest || best.prediction.missing_bytes < out_.nearest->prediction.missing_bytes) out_.nearest = best;
      refused_.push_back(best);
      refusals_.add(best.layout, best.prediction);
    } else if (bytes.status().code() == absl::StatusCode::kInternal) {
      return bytes.status();
    } else {
      out_.contradictions.insert(out_.contradictions.begin(),
                                 cat(describe(best.layout), ": ", bytes.status().message()));
      refusals_.add(best.layout);
    }
    drop_refused();
    return false;
  }

  void name_cuts() {
    if (out_.best) out_.best->layout = names_.named(std::move(out_.best->layout));
    if (out_.nearest) out_.nearest->layout = names_.named(std::move(out_.nearest->layout));
    for (Candidate& c : out_.others) c.layout = names_.named(std::move(c.layout));
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
  Space space_;
  std::vector<LayoutGroup> groups_;
  size_t next_ = 0;                           // group to look at
  std::vector<PricedLayout> fit_, doubtful_;  // by the count; over by less than kCountError, for the compiler to say
  double fastest_ = kNever;                   // of fit_
  double found_ = kNever;                     // of those with the offloads that are being considered
  double offered_ = 0;                        // of what was offered last, as it is
  double least_offered_ = kNever;             // of a layout, however its states are divided
  std::map<Family, Candidate> unfit_;
  std::map<Family, std::vector<int64_t>> group_sizes_;
  PutOff slower_;                   // that do not fit as they are
  PutOff for_memory_;               // stages with ZeRO-2 or 3
  std::vector<Candidate> refused_;  // whose programs do not fit
  RefusedPrograms refusals_;
  CutNames names_;
  std::set<std::string> reasons_;
  std::function<bool()> out_of_time_;
  int64_t effort_ = 0;
  SearchResult out_;
};

}  // namespace

absl::StatusOr<SearchResult> search(CostModel& model, const SearchOptions& options) {
  return Search(model, options).run();
}

}  // namespace partita
